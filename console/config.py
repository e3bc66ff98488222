"""``perdure config show``: every setting, its value, and where it came from."""

from __future__ import annotations

import json

import typer
from rich.table import Table

from perdure.connectors.settings import DESCRIPTIONS, Source
from perdure.console.session import Session


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="The settings.", no_args_is_help=True)
    group.command("show")(show)
    app.add_typer(group, name="config")


def show(ctx: typer.Context) -> None:
    """Every setting with its value and origin; secrets are masked."""
    session: Session = ctx.obj
    rows = session.loaded.shown()
    if session.is_json:
        for name, value, origin in rows:
            told = {"name": name, "value": value, "source": origin.source.value, "where": origin.where}
            print(json.dumps(told, ensure_ascii=False))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("setting", "value", "origin", ""):
        table.add_column(name, overflow="fold")
    for name, value, origin in rows:
        style = "dim" if origin.source is Source.DEFAULT else "default"
        table.add_row(name, value, str(origin), DESCRIPTIONS.get(name, ""), style=style)
    session.out.print(table)
    for variable in session.loaded.ignored:
        session.note(f"{variable} is set, but there is no such setting.")
