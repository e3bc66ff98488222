"""``perdure blob get``: a large result, whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from perdure.connectors.blob_stores import UnusableBlobStore, blob_store
from perdure.console.session import Session
from perdure.processors.blobs import BlobMissing, BlobStore


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Large results, kept whole in the blob store.", no_args_is_help=True)
    group.command("get")(get)
    app.add_typer(group, name="blob")


def get(
    ctx: typer.Context,
    ref: Annotated[str, typer.Argument(metavar="REF", help="The uri of the blob, or a run.")],
    call_id: Annotated[
        str | None, typer.Argument(metavar="CALL", help="The call of that run whose result is wanted.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to; standard output.")] = None,
) -> None:
    """Write a result that was too large for the log, as the tool returned it; its hash is checked."""
    session: Session = ctx.obj
    store = _store(session)
    uri = ref if call_id is None else _uri(session, ref, call_id)
    data = store.get(uri)
    if output is not None:
        output.write_bytes(data)
        told = {"uri": uri, "size": len(data), "output": str(output)}
        print(json.dumps(told)) if session.is_json else session.say(f"{len(data)} bytes in {output}.")
        return
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _store(session: Session) -> BlobStore:
    store = blob_store(session.settings.blob_store)
    if store is None:
        raise UnusableBlobStore("It is not set.")
    return store


def _uri(session: Session, run_id: str, call_id: str) -> str:
    """Where the result of a call stands, by the run's history."""
    from perdure.schemas.events import ToolCompleted

    with session.client() as client:
        for event in client.events(run_id):
            body = event.body
            if isinstance(body, ToolCompleted) and body.call_id == call_id and body.blob is not None:
                return body.blob.uri
    raise BlobMissing(f"Run {run_id} has no call {call_id} whose result was kept whole.")
