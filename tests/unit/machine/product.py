"""The product of situations and inputs, played and written down as tables.

``python -m tests.unit.machine.product`` writes the tables again; the tests compare.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from perdure.processors.machine.apply import apply
from perdure.processors.machine.inputs import (
    ChildEndedInput,
    ChildInput,
    Decided,
    ParentEndedInput,
    PurgeInput,
    RefuseInput,
    ResultInput,
    SendTranscript,
    Source,
    Tell,
    TimerInput,
)
from perdure.processors.machine.schedule import next_due_ms, purgeable_ms
from perdure.schemas import commands as cmd
from perdure.schemas import events as ev
from perdure.schemas import results as rs
from perdure.schemas.values import (
    Answer,
    DeclineReason,
    FailureKind,
    Parent,
    Provenance,
    RunState,
    Usage,
    Verdict,
)
from tests.unit.machine.conftest import RUN_ID, Driver, use
from tests.unit.machine.event_product import apply_all
from tests.unit.machine.situations import CALL, DEADLINE_AFTER_MS, SITUATIONS, fresh, stage

ROOT: Final = Path(__file__).parents[3]
TABLE: Final = Path(__file__).parent / "transitions.txt"
EVENT_TABLE: Final = Path(__file__).parent / "applications.txt"
DOCUMENT: Final = ROOT / "docs" / "LIFECYCLE.md"
NOTHING: Final = "nothing"
BEGIN: Final = "<!-- what follows is written by make tables -->"
END: Final = "<!-- end of the table -->"
LINE_CHARS_MAX: Final = 110
OTHER: Final = "other request"
UNBROKEN: Final = "\0"
FORK_ID: Final = f"{RUN_ID}~f"

Feed: TypeAlias = Callable[[Driver], Any]


def model_bodies(driver: Driver) -> Mapping[str, rs.ResultBody]:
    """Every kind of result, with the variants that a model request tells apart."""
    digest = driver.run.digest if driver.run_or_none else b""
    text = b'[{"type":"text","text":"hm"}]'
    call = b'[{"type":"tool_use","id":"n","name":"look","input":{}}]'

    def replied(content: bytes, stop_reason: str, over: bytes = digest) -> rs.ModelReplied:
        return rs.ModelReplied("i", over, content, stop_reason, Usage(10, 5))

    return {
        "ModelReplied end_turn": replied(text, "end_turn"),
        "ModelReplied tool_use": replied(call, "tool_use"),
        "ModelReplied pause_turn": replied(text, "pause_turn"),
        "ModelReplied refusal": replied(b"[]", "refusal"),
        "ModelReplied malformed": replied(b"{", "end_turn"),
        "ModelReplied to another transcript": replied(text, "end_turn", b"other"),
        "ModelFailed retryable": rs.ModelFailed("i", "overloaded", True, "busy"),
        "ModelFailed permanent": rs.ModelFailed("i", "invalid_request", False, "no"),
        "NeedTranscript": rs.NeedTranscript(),
        **other_bodies(driver),
    }


def tool_bodies(driver: Driver) -> Mapping[str, rs.ResultBody]:
    """Every kind of result, with the variants that a tool request tells apart."""
    model = model_bodies(driver)
    failures = {f"Failed {kind}": rs.Failed(kind, "?") for kind in FailureKind}
    declines = {f"Declined {reason}": rs.Declined(reason) for reason in DeclineReason}
    others = {name: body for name, body in other_bodies(driver).items() if name not in {"Failed", "Declined"}}
    return {
        **others,
        **failures,
        **declines,
        **{
            name: model[name] for name in ("ModelReplied end_turn", "ModelFailed retryable", "NeedTranscript")
        },
    }


def other_bodies(driver: Driver) -> Mapping[str, rs.ResultBody]:
    """The kinds that both kinds of request may be answered with."""
    return {
        "Started": rs.Started(driver.now_ms + 2_000),
        "Declined": rs.Declined(DeclineReason.UNAVAILABLE),
        "Suspect": rs.Suspect(),
        "Lost": rs.Lost(0, 1),
        "Completed": rs.Completed(b'"ok"'),
        "Failed": rs.Failed(FailureKind.EXCEPTION, "?"),
        "Undecodable": rs.Undecodable("?"),
        "Reconciled happened": rs.Reconciled(Answer.HAPPENED, b'"ok"'),
        "Reconciled did_not_happen": rs.Reconciled(Answer.DID_NOT_HAPPEN),
        "Reconciled unknown": rs.Reconciled(Answer.UNKNOWN),
    }


def command(body: cmd.CommandBody) -> Feed:
    return lambda driver: driver.command(body)


def decision(verdict: Verdict, *, is_forged: bool = False) -> Feed:
    """About the situation's call, with the token that is shown."""

    def feed(driver: Driver) -> None:
        pending = driver.run.pending_for(CALL) if driver.run_or_none else None
        token = pending.token if pending and not is_forged else "forged"
        result = b'"by hand"' if verdict is Verdict.RAN else None
        driver.command(cmd.Decide(CALL, verdict, token, "somebody", result=result))

    return feed


def result(name: str, *, of: str) -> Feed:
    """A result: for the pending ``model`` request, for the call's newest ``tool`` attempt, for its newest
    ``question``, or for ``other model`` and ``other tool`` requests.
    """

    def feed(driver: Driver) -> None:
        run = driver.run_or_none
        call = run.call(CALL) if run else None
        if of.endswith("model"):
            request = run.model.request_id if run and run.model and of == "model" else "other"
            body, turn, call_id = model_bodies(driver)[name], run.turn if run else 1, ""
        else:
            asked = call and (call.reconciliation if of == "question" else call.attempt)
            request = asked.request_id if asked and of != "other tool" else "other"
            body, turn, call_id = tool_bodies(driver)[name], 1, CALL
        driver.feed(ResultInput(rs.Result("r", RUN_ID, turn, call_id, 1, request, "w", body)))

    return feed


def timer(of: str) -> Feed:
    def feed(driver: Driver) -> None:
        run = driver.run_or_none
        if of == "deadline":
            driver.now_ms = max(driver.now_ms, 1_000_000 + DEADLINE_AFTER_MS)
        elif run is not None:
            due_ms = next_due_ms(run)
            at_ms = driver.now_ms if due_ms is None else due_ms
            driver.now_ms = max(driver.now_ms, at_ms - (1 if of == "early" else 0))
        driver.feed(TimerInput(RUN_ID))

    return feed


def start(*, has_slot: bool) -> Feed:
    def feed(driver: Driver) -> None:
        driver.may_start = has_slot
        driver.start()

    return feed


def purge(*, is_early: bool) -> Feed:
    def feed(driver: Driver) -> None:
        since_ms = purgeable_ms(driver.run) if driver.run_or_none else None
        kept_ms = driver.settings.finished_runs_retention_ms
        driver.now_ms = (driver.now_ms if since_ms is None else since_ms) + kept_ms - is_early
        driver.feed(PurgeInput(RUN_ID))

    return feed


def child_ended(*, is_ours: bool) -> Feed:
    def feed(driver: Driver) -> None:
        children = driver.run.children if driver.run_or_none else ()
        child_id = children[0].run_id if children and is_ours else "somebody"
        driver.feed(
            ChildEndedInput(RUN_ID, CALL, child_id, 0, RunState.COMPLETED, Usage(3, 2), b'"found"', False)
        )

    return feed


def as_child(driver: Driver) -> None:
    """A parent asks for this run."""
    parent = Parent("p", 0, 1, "c", 1)
    driver.feed(ChildInput(RUN_ID, parent, "a", None, b'"do"', driver.now_ms + 1_000, None, Provenance()))


@cache
def _source() -> Source:
    """A completed run of two turns."""
    driver = fresh()
    driver.submit()
    driver.reply(use("look", "s"))
    driver.tool_result("s", rs.Completed(b'"seen"'))
    driver.say("done")
    return Source(driver.run, tuple(driver.messages), None)


def fork(driver: Driver) -> None:
    """A fork at the end of a completed run; where a run is there, its own id is asked for again."""
    driver.source = _source()
    driver.command(cmd.Fork(message="go on"), run_id=FORK_ID if driver.run_or_none is None else RUN_ID)


def _inputs() -> Iterable[tuple[str, Feed]]:
    yield "Submit", lambda driver: driver.submit()
    yield "Submit, blank", lambda driver: driver.submit(" ")
    yield "Fork", fork
    yield "Cancel", command(cmd.Cancel("enough"))
    yield "Resume", command(cmd.Resume())
    yield "Resume, more turns", command(cmd.Resume(extra_turns=2))
    yield "Signal", command(cmd.Signal("news"))
    yield "Signal, blank", command(cmd.Signal(" "))
    for verdict in Verdict:
        yield f"Decide {verdict}", decision(verdict)
    yield "Decide, forged token", decision(Verdict.APPROVE, is_forged=True)
    yield "slot free", start(has_slot=True)
    yield "no slot free", start(has_slot=False)
    yield "timer, due", timer("due")
    yield "timer, early", timer("early")
    yield "timer, run deadline", timer("deadline")
    yield "parent asks for the run", as_child
    yield "parent ended", lambda driver: driver.feed(ParentEndedInput(RUN_ID))
    yield "child ended", child_ended(is_ours=True)
    yield "child of nobody ended", child_ended(is_ours=False)
    yield "purge, due", purge(is_early=False)
    yield "purge, early", purge(is_early=True)
    some = fresh()
    for name in model_bodies(some):
        yield f"model result: {name}", result(name, of="model")
        yield f"model result, {OTHER}: {name}", result(name, of="other model")
    for name in tool_bodies(some):
        yield f"tool result: {name}", result(name, of="tool")
        yield f"tool result, {OTHER}: {name}", result(name, of="other tool")
        yield f"reconciliation result: {name}", result(name, of="question")


INPUTS: Final[Mapping[str, Feed]] = dict(_inputs())


class Cell:
    """What one input does in one situation."""

    def __init__(self, situation: str, feed: Feed) -> None:
        driver = stage(situation)
        before = driver.run_or_none
        driver.last = Decided()
        feed(driver)
        self.events = driver.last.events
        self.outputs = driver.last.outputs
        self.state_before = before.state if before else None
        folded, self.states = before, list[RunState]()
        for event in self.events:
            folded = apply(folded, event)
            self.states.append(folded.state)
        self.state = driver.run.state if driver.run_or_none else None

    def short(self) -> str:
        """The consequence alone: a state, a reason, or that there is none."""
        for output in self.outputs:
            if isinstance(output, RefuseInput):
                return f"dead letter `{output.code}`"
            if isinstance(output, Tell) and not self.events:
                return "the asker is told"
        match self.events:
            case ():
                return "-"
            case (ev.Event(body=ev.CommandRejected(reason=reason)), *_):
                return f"refused `{reason}`"
            case (ev.Event(body=ev.SurplusRecorded()),):
                return "surplus"
            case (ev.Event(body=ev.RunPurged()),):
                return "purged"
            case _:
                return "goes on" if self.state is self.state_before else f"{self.state}"

    def full(self) -> str:
        """Every event and output."""
        parts = [_told(event.body) for event in self.events]
        if self.state is not self.state_before:
            parts.append(f"-> {self.state}")
        for output in self.outputs:
            match output:
                case RefuseInput():
                    parts.append(f"dead letter {output.code}")
                case SendTranscript():
                    parts.append("sends the transcript")
                case Tell():
                    parts.append(f"tells {type(output.input).__name__}")
        return " ".join(parts) or NOTHING


def _told(body: ev.EventBody) -> str:
    name = type(body).__name__
    match body:
        case ev.CommandRejected() | ev.SurplusRecorded() | ev.ToolAttemptEnded():
            return f"{name}({body.reason})"
        case ev.ModelAttemptEnded() | ev.RunFailed():
            return f"{name}({body.code})"
        case ev.ToolCompleted():
            return f"{name}({body.source}{', error' if body.is_error else ''})"
        case _:
            return name


def play() -> dict[str, dict[str, Cell]]:
    """Input -> situation -> what follows."""
    return {name: {where: Cell(where, feed) for where in SITUATIONS} for name, feed in INPUTS.items()}


def table(cells: Mapping[str, Mapping[str, Cell]]) -> str:
    """Every cell in full."""
    return blocks({name: {where: cell.full() for where, cell in row.items()} for name, row in cells.items()})


def blocks(answers: Mapping[str, Mapping[str, str]]) -> str:
    """What is answered alike makes a block: what may follow, then the situations in which it does."""
    found: dict[str, list[str]] = {}
    for name, row in answers.items():
        places: dict[str, list[str]] = {}
        for where, answer in row.items():
            places.setdefault(answer, []).append(where)
        block = "\n".join(f"  {answer}\n{_filled(several, 6)}" for answer, several in places.items())
        found.setdefault(block, []).append(name)
    return "\n\n".join(f"{_filled(names, 0)}\n{block}" for block, names in found.items()) + "\n"


def _filled(items: Iterable[str], indent: int) -> str:
    """Items in lines, none of them broken over two."""
    margin = " " * indent
    text = "; ".join(item.replace(" ", UNBROKEN) for item in items)
    filled = textwrap.fill(
        text, LINE_CHARS_MAX, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
    return filled.replace(UNBROKEN, " ")


def matrix(cells: Mapping[str, Mapping[str, Cell]]) -> str:
    """Inputs by states, in Markdown; where situations of a state differ, each thing that may follow."""
    states = list(dict.fromkeys(state for state, _ in SITUATIONS.values()))
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, row in cells.items():
        if OTHER in name:
            continue
        by_state: dict[str, list[str]] = {state: [] for state in states}
        for where, cell in row.items():
            by_state[SITUATIONS[where][0]].append(cell.short())
        answers = tuple(", ".join(dict.fromkeys(found)) for found in by_state.values())
        rows.setdefault(answers, []).append(name)
    lines = [f"| input | {' | '.join(states)} |", "|---" * (len(states) + 1) + "|"]
    lines += [f"| {_listed(names)} | {' | '.join(answers)} |" for answers, names in rows.items()]
    return "\n".join(lines)


def _listed(names: Iterable[str]) -> str:
    """Names, with what several begin with said once."""
    groups: dict[str, list[str]] = {}
    for name in names:
        head, mark, tail = name.rpartition(": ")
        groups.setdefault(head + mark, []).append(tail)
    return "; ".join(f"{head}{', '.join(tails)}" for head, tails in groups.items())


def document(matrix_text: str) -> str:
    """The page of the docs with this matrix in place of the one it has."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{matrix_text}\n{END}{after}"


def write() -> None:
    """Write down what the machine does now."""
    cells = play()
    TABLE.write_text(table(cells), encoding="utf-8")
    EVENT_TABLE.write_text(blocks(apply_all()), encoding="utf-8")
    DOCUMENT.write_text(document(matrix(cells)), encoding="utf-8")


if __name__ == "__main__":
    write()
