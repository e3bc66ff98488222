"""``perdure fork`` and ``continue``: a new run goes on where another one stood."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from perdure.console.runs import show_run, whoami
from perdure.console.session import Session
from perdure.schemas.values import Provenance

Source = Annotated[str, typer.Argument(metavar="RUN")]
Message = Annotated[str | None, typer.Option("--message", "-m", help="Told to the model.")]
ForkId = Annotated[str | None, typer.Option("--id", help="The new run is called RUN~ID; random by default.")]
MaxTurns = Annotated[int | None, typer.Option(min=1, help="Of the new run's own turns.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Show the new run until it ends.")]


def register(app: typer.Typer) -> None:
    app.command("fork")(fork)
    app.command("continue")(continue_)


def fork(
    ctx: typer.Context,
    run_id: Source,
    turn: Annotated[
        int | None, typer.Option(min=1, help="After this turn; by default after the last.")
    ] = None,
    message: Message = None,
    fork_id: ForkId = None,
    max_turns: MaxTurns = None,
    follow: Follow = False,
) -> None:
    """Start a new run where another one stood at the end of a turn. The other one is not touched."""
    _fork(ctx.obj, run_id, turn, message, fork_id, max_turns, follow=follow)


def continue_(
    ctx: typer.Context,
    run_id: Source,
    message: Annotated[str, typer.Option("--message", "-m", help="Told to the model.")],
    fork_id: ForkId = None,
    max_turns: MaxTurns = None,
    follow: Follow = False,
) -> None:
    """Go on from the end of a run, as a new run that knows all of it."""
    _fork(ctx.obj, run_id, None, message, fork_id, max_turns, follow=follow)


def _fork(
    session: Session,
    run_id: str,
    turn: int | None,
    message: str | None,
    fork_id: str | None,
    max_turns: int | None,
    *,
    follow: bool,
) -> None:
    with session.client() as client:
        source = client.status(run_id)  # an unknown one is said here, not in a dead letter
        provenance = source.provenance if source.provenance != Provenance() else Provenance(sender=whoami())
        new = client.fork(
            run_id, turn=turn, message=message, fork_id=fork_id, max_turns=max_turns, provenance=provenance
        )
    if follow:
        session.say(new)
        raise typer.Exit(show_run(session, new, follow=True))
    print(json.dumps({"run_id": new}) if session.is_json else new)
