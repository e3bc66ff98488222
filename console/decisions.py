"""``perdure approvals``, ``approve``, ``reject`` and ``decide``: what people are asked, and their answers."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, cast

import typer

from perdure.console.runs import whoami
from perdure.console.session import Session, json_line
from perdure.console.timeline import excerpt
from perdure.schemas.outputs import Approval
from perdure.schemas.values import ExecutorKind, PendingKind

if TYPE_CHECKING:
    from perdure.connectors.client import Client


class Choice(StrEnum):
    """What ``perdure decide`` takes about a call that may have run."""

    RAN = "ran"
    DID_NOT_RUN = "did-not-run"
    GIVE_UP = "give-up"


def register(app: typer.Typer) -> None:
    app.command("approvals")(approvals)
    app.command("approve")(approve)
    app.command("reject")(reject)
    app.command("decide")(decide)


Run = Annotated[str, typer.Argument(metavar="RUN")]
OptionalCall = Annotated[
    str | None,
    typer.Argument(metavar="[CALL]", help="May be left out if only one waits.", show_default=False),
]
By = Annotated[str | None, typer.Option(help="Who decides; you by default.", show_default=False)]
Message = Annotated[str | None, typer.Option("--message", "-m", help="Told to the model.")]


def approvals(
    ctx: typer.Context,
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", show_default=False)] = None,
) -> None:
    """What people are asked now, oldest first."""
    session: Session = ctx.obj
    with session.client() as client:
        found = client.approvals(run_id)
    for each in found:
        if session.is_json:
            print(json_line(each))
        else:
            _print(session, each)
    if not found:
        session.say("Nothing waits for a decision.")


def approve(
    ctx: typer.Context,
    run_id: Run,
    call_id: OptionalCall = None,
    by: By = None,
    arguments: Annotated[
        str | None,
        typer.Option(help="JSON object in place of the model's arguments.", show_default=False),
    ] = None,
) -> None:
    """Let a call be made that waits for approval, as it is or with other arguments."""
    session: Session = ctx.obj
    edited = None if arguments is None else _object(arguments)
    with session.client() as client:
        asked = client.approval(run_id, call_id)
        _answer(session, client, asked, client.approve(asked, by=by or whoami(), arguments=edited))


def reject(
    ctx: typer.Context, run_id: Run, call_id: OptionalCall = None, by: By = None, message: Message = None
) -> None:
    """Do not let a call be made that waits for approval."""
    session: Session = ctx.obj
    with session.client() as client:
        asked = client.approval(run_id, call_id)
        _answer(session, client, asked, client.reject(asked, by=by or whoami(), message=message))


def decide(
    ctx: typer.Context,
    run_id: Run,
    call_id: Annotated[str, typer.Argument(metavar="CALL")],
    choice: Annotated[Choice, typer.Argument(help="What became of the call.")],
    result: Annotated[
        str | None, typer.Argument(help="With ran: its result, JSON or plain text.", show_default=False)
    ] = None,
    by: By = None,
    message: Message = None,
) -> None:
    """Say what became of a call that may have run, when nothing else can tell.

    ran RESULT: it took effect, this is its result. did-not-run: it did not and cannot any more; it is made
    once again. give-up: nobody knows; the model is told so.
    """
    session: Session = ctx.obj
    if (choice is Choice.RAN) != (result is not None):
        raise typer.BadParameter("RESULT goes with ran, and only with ran", param_hint="RESULT")
    who = by or whoami()
    with session.client() as client:
        asked = client.approval(run_id, call_id)
        match choice:
            case Choice.RAN:
                command_id = client.ran(asked, _value(result or ""), by=who)
            case Choice.DID_NOT_RUN:
                command_id = client.did_not_run(asked, by=who)
            case Choice.GIVE_UP:
                command_id = client.give_up(asked, by=who, message=message)
        _answer(session, client, asked, command_id)


def _answer(session: Session, client: Client, asked: Approval, command_id: str) -> None:
    """Wait for the run to accept or refuse; a refusal is an error with its stable reason."""
    event = client.answered(asked.run_id, command_id)
    if session.is_json:
        print(json_line(event))
    else:
        session.say(f"{asked.tool} ({asked.call_id}) of {asked.run_id} is decided.")


def _value(text: str) -> object:
    try:
        return cast("object", json.loads(text))
    except ValueError:
        return text


def _object(text: str) -> dict[str, object]:
    value = _value(text)
    if not isinstance(value, dict):
        raise typer.BadParameter("it is no JSON object", param_hint="--arguments")
    return cast("dict[str, object]", value)


def _print(session: Session, asked: Approval) -> None:
    session.out.print(f"{asked.run_id}  {asked.call_id}  ", style="bold", end="", markup=False)
    session.out.print(f"{asked.tool} {excerpt(asked.arguments)} [{asked.effect}]", markup=False)
    if asked.recipient is not None and asked.recipient.executor is not ExecutorKind.FUNCTION:
        session.out.print(
            f"  carried out by {asked.recipient.executor} {asked.recipient.server}", style="dim", markup=False
        )
    if asked.kind is PendingKind.APPROVAL:
        session.out.print(f"  perdure approve {asked.run_id} {asked.call_id}", style="dim", markup=False)
        return
    session.out.print(f"  It may have run. Known: {excerpt(asked.known, 400)}", style="yellow", markup=False)
    answers = " | ".join(verdict.replace("_", "-") for verdict in asked.verdicts)
    session.out.print(f"  perdure decide {asked.run_id} {asked.call_id} {answers}", style="dim", markup=False)
