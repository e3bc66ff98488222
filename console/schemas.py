"""``perdure schemas``: the Avro schemas of the records, with their fingerprints."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from perdure.console.session import Session


def register(app: typer.Typer) -> None:
    app.command("schemas")(schemas)


def schemas(
    ctx: typer.Context,
    record: Annotated[
        str | None, typer.Argument(help="A record's name: print its schema.", show_default=False)
    ] = None,
) -> None:
    """The Avro schemas of the records and their fingerprints; with a name, that schema."""
    from perdure.schemas.registry import RECORD_KINDS, current_schema, released_schemas

    session: Session = ctx.obj
    if record is not None:
        kinds = [kind for kind in RECORD_KINDS if kind.name.lower() == record.lower()]
        if not kinds:
            names = ", ".join(kind.name for kind in RECORD_KINDS)
            raise typer.BadParameter(f"{record!r} is none of {names}", param_hint="RECORD")
        print(json.dumps(current_schema(kinds[0]), indent=None if session.is_json else 2))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("record", "topic", "key", "version", "fingerprint"):
        table.add_column(name, overflow="fold")
    for kind in RECORD_KINDS:
        for released in released_schemas(kind):
            row = (kind.name, kind.topic, kind.key, str(released.version), released.fingerprint.hex())
            if session.is_json:
                print(
                    json.dumps(
                        dict(zip(("record", "topic", "key", "version", "fingerprint"), row, strict=True))
                    )
                )
            table.add_row(*row)
    if not session.is_json:
        session.out.print(table)
