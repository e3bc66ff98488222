"""The command line: ``perdure``.

Every command is a module of its own beside this one and is imported when it is run, so that ``perdure
--help`` loads no client.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from perdure import __version__
from perdure.console import (
    blobs,
    config,
    decisions,
    dev,
    doctor,
    forks,
    runs,
    schemas,
    topics,
    view,
    worker,
)
from perdure.console.session import Session, exit_code_of, hoisted, parsed_set, shown_error
from perdure.schemas.errors import PerdureError

EXIT_INTERRUPTED: Final = 130

app = typer.Typer(
    name="perdure",
    help="LLM agents as durable, event-sourced state machines on Kafka.",
    epilog="The options above are taken anywhere on the command line. "
    "Every setting can also come from perdure.toml or PERDURE_* (perdure config show).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for each in (dev, worker, view, runs, forks, decisions, blobs, topics, config, doctor, schemas):
    each.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    config: Annotated[Path | None, typer.Option(help="The configuration file (perdure.toml).")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's host:port.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Prefix of topics and groups.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where workers keep their slots.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE, any setting.")] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")] = False,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    options = {
        "bootstrap": bootstrap,
        "namespace": namespace,
        "state_dir": state_dir,
        "log_level": log_level,
    }
    flags = {
        **parsed_set(set_ or ()),
        **{name: value for name, value in options.items() if value is not None},
    }
    ctx.obj = Session(flags, config, is_json)


def main(arguments: list[str] | None = None) -> None:
    """Run one command and end the process with its exit code."""
    given = hoisted(sys.argv[1:] if arguments is None else arguments)
    try:
        app(given, prog_name="perdure")
    except PerdureError as error:
        if "--json" in given:
            print(json.dumps({"error": shown_error(error)}, ensure_ascii=False))
        else:
            print(f"perdure: {error.args[0]} [{error.code}]\n{error.remedy}", file=sys.stderr)
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
