"""``perdure submit``, ``show``, ``runs`` and ``cancel``."""

from __future__ import annotations

import contextlib
import getpass
import json
import socket
import sys
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.table import Table

from perdure.console import budgets
from perdure.console.session import Session, json_line
from perdure.console.timeline import Timeline, excerpt, usage_text
from perdure.schemas.events import Event
from perdure.schemas.outputs import Outcome, Status
from perdure.schemas.values import Provenance, RunState

EXIT_NOT_COMPLETED: Final = 1
RUNS_SHOWN: Final = 50
CANCEL_REASON: Final = "cancelled on the command line"
STYLES: Final = {
    RunState.COMPLETED: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "red",
    RunState.TIMED_OUT: "red",
    RunState.AWAITING_APPROVAL: "yellow",
}


def register(app: typer.Typer) -> None:
    app.command("submit")(submit)
    app.command("show")(show)
    app.command("runs")(runs)
    app.command("cancel")(cancel)
    app.command("resume")(resume)
    app.command("signal")(signal)


def submit(
    ctx: typer.Context,
    agent: Annotated[str, typer.Argument(help="The agent's name.")],
    input_: Annotated[
        str, typer.Argument(metavar="INPUT", help="What the run is asked; - reads standard input.")
    ],
    run_id: Annotated[
        str | None, typer.Option(help="Chosen by you; submitting it again is harmless.")
    ] = None,
    agent_version: Annotated[str | None, typer.Option(help="The newest published one by default.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, copied into the outcome.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Copied into the outcome.")] = None,
    deadline_s: Annotated[float | None, typer.Option(help="The run is ended after so many seconds.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Narrows what the agent allows.")] = None,
    budget_input_tokens: budgets.InputTokens = None,
    budget_output_tokens: budgets.OutputTokens = None,
    budget_cache_creation_tokens: budgets.CacheCreationTokens = None,
    budget_cache_read_tokens: budgets.CacheReadTokens = None,
    budget_usd: budgets.Usd = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show the run until it ends.")] = False,
) -> None:
    """Ask for a run; durable when this returns. Prints the run id."""
    from perdure.connectors.client_errors import NoAnswerYet

    session: Session = ctx.obj
    text = sys.stdin.read() if input_ == "-" else input_
    provenance = Provenance(
        correlation_id=correlation_id, labels=_labels(label or ()), sender=f"{whoami()} (command line)"
    )
    with session.client() as client:
        run_id = client.submit(
            agent,
            text,
            run_id=run_id,
            version=agent_version,
            deadline_s=deadline_s,
            max_turns=max_turns,
            budget=budgets.budget_of(
                budget_input_tokens,
                budget_output_tokens,
                budget_cache_creation_tokens,
                budget_cache_read_tokens,
                budget_usd,
            ),
            provenance=provenance,
        )
        if follow:
            session.say(run_id)
            with contextlib.suppress(NoAnswerYet):  # it may still come, and is shown then
                client.accepted(run_id)
    if not follow:
        print(json.dumps({"run_id": run_id}) if session.is_json else run_id)
        return
    raise typer.Exit(show_run(session, run_id, follow=True))


def show(
    ctx: typer.Context,
    run_id: Annotated[str, typer.Argument(metavar="RUN")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
) -> None:
    """A run's history: what happened, in order. With --json an event a line, as they are in the log."""
    raise typer.Exit(show_run(ctx.obj, run_id, follow=follow))


def show_run(session: Session, run_id: str, *, follow: bool) -> int:
    """Print the timeline; 0 unless the run ended otherwise than completed."""
    from perdure.connectors.client import ENDINGS
    from perdure.connectors.client_errors import UnknownRun
    from perdure.connectors.refusals import RunRefused
    from perdure.schemas.events import RunCompleted

    lines = Timeline()
    last: Event | None = None
    code = 0
    with session.client() as client:
        for event in client.events(run_id, follow=follow):
            last = event
            if isinstance(event.body, ENDINGS):
                code = 0 if isinstance(event.body, RunCompleted) else EXIT_NOT_COMPLETED
            if session.is_json:
                print(json_line(event), flush=True)
            elif (line := lines.add(event)) is not None:
                session.out.print(line)
        if last is None:
            refused = client.refusal(run_id)
            raise RunRefused(refused) if refused is not None else UnknownRun(f"{run_id}.")
    return code


def runs(
    ctx: typer.Context,
    state: Annotated[RunState | None, typer.Option(help="Only those.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = RUNS_SHOWN,
) -> None:
    """The runs there are, newest first."""
    session: Session = ctx.obj
    with session.client() as client:
        found = [each for each in client.runs() if state in {None, each.state}]
    shown = found[:limit]
    if session.is_json:
        for each in shown:
            print(json_line(each))
        return
    session.out.print(_table(shown))
    if len(found) > len(shown):
        session.note(f"{len(found) - len(shown)} more: --limit {len(found)}")


def cancel(
    ctx: typer.Context,
    run_id: Annotated[str, typer.Argument(metavar="RUN")],
    reason: Annotated[str, typer.Option(help="Kept in the run's history.")] = CANCEL_REASON,
) -> None:
    """End a run now. Calls that were started are told to stop; what they did is still recorded."""
    session: Session = ctx.obj
    with session.client() as client:
        event = client.answered(run_id, client.cancel(run_id, reason))
    print(json_line(event)) if session.is_json else session.say(f"{run_id} is cancelled.")


def resume(
    ctx: typer.Context,
    run_id: Annotated[str, typer.Argument(metavar="RUN")],
    message: Annotated[str | None, typer.Option("--message", "-m", help="Told to the model.")] = None,
    extra_turns: Annotated[int | None, typer.Option(min=1, help="Raise the limit of turns.")] = None,
    budget_input_tokens: budgets.InputTokens = None,
    budget_output_tokens: budgets.OutputTokens = None,
    budget_cache_creation_tokens: budgets.CacheCreationTokens = None,
    budget_cache_read_tokens: budgets.CacheReadTokens = None,
    budget_usd: budgets.Usd = None,
) -> None:
    """Start a failed, cancelled or timed out run again. What was done stays done. A budget that is given
    replaces the run's; what was used counts against it.
    """
    session: Session = ctx.obj
    budget = budgets.budget_of(
        budget_input_tokens,
        budget_output_tokens,
        budget_cache_creation_tokens,
        budget_cache_read_tokens,
        budget_usd,
    )
    with session.client() as client:
        command_id = client.resume(run_id, message=message, extra_turns=extra_turns, budget=budget)
        event = client.answered(run_id, command_id)
    print(json_line(event)) if session.is_json else session.say(f"{run_id} is resumed.")


def signal(
    ctx: typer.Context,
    run_id: Annotated[str, typer.Argument(metavar="RUN")],
    message: Annotated[str, typer.Argument(metavar="MESSAGE")],
) -> None:
    """Send a message into a running run; its next turn tells it to the model."""
    session: Session = ctx.obj
    with session.client() as client:
        event = client.answered(run_id, client.signal(run_id, message))
    print(json_line(event)) if session.is_json else session.say(f"{run_id} has it.")


def whoami() -> str:
    """Who decides or asks, for the record."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def outcome_line(outcome: Outcome) -> str:
    """How a run ended, in a line."""
    told = excerpt(outcome.output) if outcome.output is not None else f"{outcome.code}: {outcome.message}"
    return f"{outcome.state}: {told}"


def _labels(pairs: list[str] | tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--label")
        found[name] = value
    return tuple(sorted(found.items()))


def _table(found: list[Status]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("run", "state", "agent", "turn", "used", "begun", "note"):
        table.add_column(name, no_wrap=name != "note", overflow="fold")
    for each in found:
        note = each.code or each.waiting_for or ""
        if each.pending_approvals:
            note = f"{each.pending_approvals} to decide: perdure show {each.run_id}"
        begun = datetime.fromtimestamp(each.created_ms / 1000, UTC).astimezone()
        table.add_row(
            each.run_id,
            f"[{STYLES.get(each.state, 'default')}]{each.state}",
            excerpt(each.agent),
            str(each.turn),
            usage_text(each.usage),
            begun.strftime("%Y-%m-%d %H:%M:%S"),
            excerpt(note),
        )
    return table
