"""What every blob store promises; the folder and a bucket behind a real S3 protocol."""

from __future__ import annotations

import hashlib
import logging
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import boto3
import pytest

from perdure.connectors.blob_folder import FolderBlobs
from perdure.connectors.blob_s3 import S3Blobs
from perdure.connectors.blob_stores import UnusableBlobStore, blob_store
from perdure.processors.blobs import (
    JSON,
    TEXT,
    BlobDamaged,
    BlobKey,
    BlobMissing,
    BlobStore,
    BlobUnreachable,
    InvalidBlobReference,
)

BUCKET = "perdure-blobs"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """A store, another view of the same place, one that nobody reaches, and a way to spoil what is stored.

    ``writers``: how many may write one object at a time. The pretended bucket answers 500 to some of several.
    """

    store: BlobStore
    again: BlobStore
    unreachable: BlobStore
    spoil: Callable[[str, bytes], None]
    names: Callable[[], list[str]]
    writers: int


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def _folder(tmp_path: Path) -> Place:
    folder = tmp_path / "blobs"

    def spoil(uri: str, data: bytes) -> None:
        Path(unquote(urlsplit(uri).path)).write_bytes(data)

    (tmp_path / "file").write_text("a file is no folder")
    return Place(
        FolderBlobs(folder),
        FolderBlobs(folder),
        FolderBlobs(tmp_path / "file" / "below"),
        spoil,
        lambda: sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()),
        8,
    )


def _bucket(s3_url: str, prefix: str) -> Place:
    access = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=s3_url, **access)
    client.create_bucket(Bucket=BUCKET)

    def spoil(uri: str, data: bytes) -> None:
        client.put_object(Bucket=BUCKET, Key=urlsplit(uri).path.lstrip("/"), Body=data)

    def names() -> list[str]:
        found = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        return sorted(each["Key"].removeprefix(f"{prefix}/") for each in found)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    return Place(
        S3Blobs(BUCKET, prefix, endpoint_url=s3_url, **access),
        S3Blobs(BUCKET, prefix, endpoint_url=s3_url, **access),
        S3Blobs(BUCKET, prefix, endpoint_url=nobody, **access),
        spoil,
        names,
        1,
    )


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return _folder(tmp_path)
    return _bucket(request.getfixturevalue("s3_url"), tmp_path.name)


def test_what_is_put_is_got_whole_by_its_reference(place: Place) -> None:
    """Also by another process, and with size, type and hash in the reference."""
    data = bytes(range(256)) * (5 * MIB // 256)
    ref = place.store.put("run-1", data, JSON)
    assert place.again.get(ref.uri) == data
    assert (ref.size, ref.media_type) == (len(data), JSON)
    assert ref.sha256 == hashlib.sha256(data).digest()


def test_the_same_content_of_a_run_is_one_blob(place: Place) -> None:
    """Attempts that return the same, or are told twice, leave one blob behind."""
    refs = {place.store.put("run-1", b"same", TEXT).uri for _ in range(3)}
    refs.add(place.again.put("run-1", b"same", TEXT).uri)
    assert len(refs) == 1
    assert place.names() == [str(BlobKey.of("run-1", b"same"))]


def test_a_family_of_runs_shares_its_blobs(place: Place) -> None:
    """Forks and children, whose histories point at them, are told from others by their root."""
    root = place.store.put("run-1", b"content", TEXT)
    assert place.store.put("run-1~2~3", b"content", TEXT) == root
    assert place.store.put("run-2", b"content", TEXT).uri != root.uri


def test_a_run_of_any_name_stays_within_the_store(place: Place) -> None:
    """A run may be called like a folder above; its blobs go where all others go."""
    for name in ("..", ".", "a:b", "-", "A" * 128):
        ref = place.store.put(name, name.encode(), TEXT)
        assert place.again.get(ref.uri) == name.encode()
    assert all(name.startswith("run-") for name in place.names())
    assert len(place.names()) == 5


def test_many_writers_of_one_blob_leave_it_whole(place: Place) -> None:
    """Workers may store the same result at the same time; nothing of it is left half written."""
    data = b"x" * MIB
    with ThreadPoolExecutor(place.writers) as pool:
        refs = list(pool.map(lambda _: place.store.put("run-1", data, TEXT), range(16)))
    assert len({ref.uri for ref in refs}) == 1
    assert place.again.get(refs[0].uri) == data
    assert len(place.names()) == 1


def test_the_blobs_of_a_family_are_forgotten_and_no_others(place: Place) -> None:
    """Whichever run of it they were stored for; and it may be said again."""
    gone = [place.store.put(run_id, run_id.encode(), TEXT) for run_id in ("run-1", "run-1~a", "run-1~a~b")]
    kept = place.store.put("run-10", b"kept", TEXT)
    for _ in range(2):
        place.again.forget("run-1")
    assert place.store.get(kept.uri) == b"kept"
    for ref in gone:
        with pytest.raises(BlobMissing):
            place.store.get(ref.uri)
    with pytest.raises(BlobUnreachable):
        place.unreachable.forget("run-1")


def test_what_is_not_there_is_said_to_be_missing(place: Place) -> None:
    """A reference of another store is one to nothing."""
    place.store.put("run-1", b"something", TEXT)
    with pytest.raises(BlobMissing):
        place.store.get(f"s3://elsewhere/run-run-1/{'0' * 64}")


def test_another_content_than_was_put_is_found_out(place: Place) -> None:
    """A name ends in the hash of the content, and what is got is compared with it."""
    ref = place.store.put("run-1", b"right", TEXT)
    place.spoil(ref.uri, b"wrong")
    with pytest.raises(BlobDamaged):
        place.again.get(ref.uri)


@pytest.mark.parametrize(
    "uri",
    ["", "run-a", "file:///etc/passwd", f"run-/{'0' * 64}", f"run-a/../{'0' * 64}", f"run-a/{'0' * 63}"],
)
def test_what_is_no_reference_is_refused(place: Place, uri: str) -> None:
    """Nothing but blobs can be read through it."""
    with pytest.raises(InvalidBlobReference):
        place.store.get(uri)


def test_a_store_that_does_not_answer_says_so_in_bounded_time(place: Place) -> None:
    """Whoever waits is told that it may be tried again."""
    with pytest.raises(BlobUnreachable):
        place.unreachable.put("run-1", b"content", TEXT)
    with pytest.raises((BlobUnreachable, BlobMissing)):
        place.unreachable.get(str(BlobKey.of("run-1", b"content")))


def test_a_partly_written_file_is_never_the_blob(tmp_path: Path) -> None:
    """What a crash left under another name is not seen, and what is under the name is not trusted if it is
    too short.
    """
    store = FolderBlobs(tmp_path)
    ref = store.put("run-1", b"content", TEXT)
    Path(unquote(urlsplit(ref.uri).path)).write_bytes(b"con")
    assert store.put("run-1", b"content", TEXT) == ref
    assert store.get(ref.uri) == b"content"


def test_a_setting_names_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_url: str) -> None:
    """A path is a folder, s3:// a bucket found as AWS's own tools find it, anything else an error."""
    assert blob_store(None) is None
    assert isinstance(blob_store(str(tmp_path)), FolderBlobs)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    boto3.client("s3").create_bucket(Bucket="named-by-setting")
    store = blob_store("s3://named-by-setting/some/where/")
    assert store is not None
    ref = store.put("r", b"content", TEXT)
    assert ref.uri == f"s3://named-by-setting/some/where/{BlobKey.of('r', b'content')}"
    assert store.get(ref.uri) == b"content"
    for place in ("s3://", "gs://bucket"):
        with pytest.raises(UnusableBlobStore):
            blob_store(place)
