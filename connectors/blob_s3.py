"""Blobs in a bucket of Amazon S3, or of anything that speaks its protocol; needs the extra ``s3`` (boto3).

Credentials, region and endpoint are found as boto3 finds them: AWS_* variables (AWS_ENDPOINT_URL_S3 for
another service), shared configuration files, or the machine's role.
"""

from __future__ import annotations

import base64
from importlib import import_module
from typing import Any, Final, cast

from perdure.processors.blobs import BlobKey, BlobMissing, BlobUnreachable, folder_of
from perdure.schemas.errors import Stop
from perdure.schemas.values import BlobRef

CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 20
TRIES_MAX: Final = 3
CONNECTIONS_MAX: Final = 16
# An object that is not there is told as 404 without, and NoSuchKey with the right to list.
ABSENT: Final = frozenset({"NoSuchKey", "404"})


class S3Missing(Stop):
    """The blob store is in S3, and boto3 is not installed."""

    code = "s3_missing"
    remedy = "Install perdure[s3]."


class S3Blobs:
    """See :class:`perdure.processors.blobs.BlobStore`. The bucket has to exist."""

    def __init__(self, bucket: str, prefix: str = "", **client: Any) -> None:
        """``client``: further arguments of ``boto3.client``. Raises :class:`S3Missing`."""
        try:
            boto3 = cast("Any", import_module("boto3"))
            config = cast("Any", import_module("botocore.config"))
            self._errors = cast("Any", import_module("botocore.exceptions"))
        except ModuleNotFoundError as error:
            raise S3Missing(f"There is no module {error.name}.") from error
        self._bucket = bucket
        self._prefix = prefix.strip("/")
        bounds = config.Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"max_attempts": TRIES_MAX, "mode": "standard"},
            max_pool_connections=CONNECTIONS_MAX,
        )
        self._client: Any = boto3.client("s3", config=bounds, **client)

    def put(self, run_id: str, data: bytes, media_type: str) -> BlobRef:
        key = BlobKey.of(run_id, data)
        name = self._name(key)
        try:
            # One object, one request: a reader sees it whole or not at all; the service compares the hash.
            self._client.put_object(
                Bucket=self._bucket,
                Key=name,
                Body=data,
                ContentType=media_type,
                ChecksumSHA256=base64.b64encode(bytes.fromhex(key.sha256)).decode(),
            )
        except (self._errors.BotoCoreError, self._errors.ClientError) as error:
            raise BlobUnreachable(f"s3://{self._bucket}/{name}: {error}.") from error
        return key.ref(f"s3://{self._bucket}/{name}", data, media_type)

    def get(self, uri: str) -> bytes:
        key = BlobKey.parse(uri)
        name = self._name(key)
        try:
            found = self._client.get_object(Bucket=self._bucket, Key=name)
            with found["Body"] as body:
                data = cast("bytes", body.read())
        except self._errors.ClientError as error:
            if error.response.get("Error", {}).get("Code") in ABSENT:
                raise BlobMissing(f"s3://{self._bucket}/{name}.") from error
            raise BlobUnreachable(f"s3://{self._bucket}/{name}: {error}.") from error
        except (self._errors.BotoCoreError, OSError) as error:
            raise BlobUnreachable(f"s3://{self._bucket}/{name}: {error}.") from error
        return key.checked(data)

    def forget(self, run_id: str) -> None:
        start = f"{self._prefix}/{folder_of(run_id)}/" if self._prefix else f"{folder_of(run_id)}/"
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=start)
            for page in pages:
                for each in page.get("Contents", ()):
                    self._client.delete_object(Bucket=self._bucket, Key=each["Key"])
        except (self._errors.BotoCoreError, self._errors.ClientError) as error:
            raise BlobUnreachable(f"s3://{self._bucket}/{start}: {error}.") from error

    def _name(self, key: BlobKey) -> str:
        return f"{self._prefix}/{key}" if self._prefix else str(key)
