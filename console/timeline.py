"""A run's history as a person wants to read it: one line an event, with what matters in it.

:func:`timeline` renders a whole history; :class:`Timeline` takes events one by one, for following a live run.
Both are pure: what they show follows from the events alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never, cast

from rich.console import Group, RenderableType
from rich.text import Text

from perdure.schemas import events as ev
from perdure.schemas.values import Answer, PendingKind, ResultSource, Usage

EXCERPT_CHARS: Final = 100
LABEL_CHARS: Final = 11
# What a terminal would obey instead of showing.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")

OK, DOUBT, BAD, QUIET, PLAIN = "green", "yellow", "red", "dim", "default"


@dataclass(frozen=True, slots=True)
class _Line:
    mark: str
    label: str
    detail: str
    style: str = PLAIN
    is_inner: bool = True  # inside of a turn


class Timeline:
    """Turns events into lines; remembers which tool a call is of, and when the run began."""

    def __init__(self) -> None:
        self._begun_ms: int | None = None
        self._tools: dict[str, str] = {}

    def add(self, event: ev.Event) -> Text | None:
        """The event's line; None for one that says nothing to a person."""
        if self._begun_ms is None:
            self._begun_ms = event.at_ms
        if isinstance(event.body, ev.ToolCallRequested):
            self._tools[event.body.call_id] = event.body.tool
        line = self._line(event.body, event.run_id)
        if line is None:
            return None
        seconds = (event.at_ms - self._begun_ms) / 1000
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{seconds:>9.3f}s  ", QUIET)
        text.append(("  " if line.is_inner else "") + line.mark + " ", line.style)
        width = LABEL_CHARS if line.is_inner else LABEL_CHARS + 2
        text.append(f"{line.label:<{width}} ", f"bold {line.style}")
        text.append(line.detail, line.style if line.style == QUIET else PLAIN)
        return text

    def _line(self, body: ev.EventBody, run_id: str) -> _Line | None:
        match body:
            case (
                ev.RunCreated()
                | ev.AgentPinned()
                | ev.RunWaiting()
                | ev.RunCompleted()
                | ev.RunFailed()
                | ev.RunCancelled()
                | ev.RunTimedOut()
                | ev.RunResumed()
            ):
                return _of_run(body)
            case ev.TurnStarted() | ev.TranscriptSent() | ev.ModelResponded() | ev.ModelAttemptEnded():
                return _of_turn(body)
            case ev.TurnResumed(turn=turn):
                return _Line("▶", f"turn {turn}", "taken up again", is_inner=False)
            case ev.SignalReceived(message=message):
                return _Line("✉", "message", f"{excerpt(message)} (for the next turn)", is_inner=False)
            case ev.CommandRejected(kind=kind, reason=reason):
                return _Line("✗", "refused", f"{kind}: {reason}", DOUBT, is_inner=False)
            case ev.RunPurged():
                return _Line("∅", "purged", "history deleted, id stays used", QUIET, is_inner=False)
            case ev.SurplusRecorded(call_id=call_id, kind=kind, reason=reason) as body:
                what = self._tools.get(call_id, "model")
                return _Line("·", "surplus", f"{what}: {kind} ({reason}); {_use_of(body)}", QUIET)
            case _:
                return _of_call(body, self._tools.get(body.call_id, body.call_id), run_id)


def timeline(events: Iterable[ev.Event]) -> RenderableType:
    """A whole history, or a part of one, as lines."""
    lines = Timeline()
    return Group(*(line for line in map(lines.add, events) if line is not None))


def excerpt(data: bytes | str, chars: int = EXCERPT_CHARS) -> str:
    """The beginning of some text or JSON in one line that a terminal shows as it is.

    A JSON string is shown without its quotes, content blocks as their text.
    """
    text = data if isinstance(data, str) else _plain(data)
    text = _CONTROL.sub(" ", text).strip()
    return text if len(text) <= chars else text[: chars - 1] + "…"


def usage_text(usage: Usage) -> str:
    """Tokens and money in a few words; empty if nothing was used."""
    parts: list[str] = []
    total_in = usage.input_tokens + usage.cache_creation_tokens + usage.cache_read_tokens
    if total_in or usage.output_tokens:
        parts.append(f"{total_in} in, {usage.output_tokens} out")
    if usage.cost_nano_usd:
        parts.append(f"${usage.cost_nano_usd / 1e9:.4f}")
    return ", ".join(parts)


_RunBody = (
    ev.RunCreated
    | ev.AgentPinned
    | ev.RunWaiting
    | ev.RunCompleted
    | ev.RunFailed
    | ev.RunCancelled
    | ev.RunTimedOut
    | ev.RunResumed
)


def _of_run(body: _RunBody) -> _Line:
    match body:
        case ev.RunCreated(agent=agent, version=version, input=given):
            waits = f"; waits for {body.waiting_for}" if body.waiting_for else ""
            name = f"{agent} {version}" if version else agent
            return _Line("●", "created", f"{name}: {excerpt(given)}{waits}", is_inner=False)
        case ev.AgentPinned(version=version, definition=definition):
            return _Line("●", "agent found", f"version {version}, {definition[:12]}", QUIET, is_inner=False)
        case ev.RunWaiting(waiting_for=waiting_for):
            return _Line("…", "waits", f"for {waiting_for}", DOUBT, is_inner=False)
        case ev.RunCompleted(output=output, stop_reason=reason):
            return _Line("✔", "completed", f"{excerpt(output)} ({reason})", OK, is_inner=False)
        case ev.RunFailed(code=code, message=message, phase=phase):
            return _Line("✘", "failed", f"{code} in {phase}: {excerpt(message)}", BAD, is_inner=False)
        case ev.RunCancelled(reason=reason):
            return _Line("✘", "cancelled", excerpt(reason), BAD, is_inner=False)
        case ev.RunTimedOut(reason=reason):
            return _Line("✘", "timed out", excerpt(reason), BAD, is_inner=False)
        case ev.RunResumed(execution=execution, message=message):
            detail = f"execution {execution}{f': {excerpt(message)}' if message else ''}"
            return _Line("●", "resumed", detail, is_inner=False)
        case _:
            assert_never(body)


def _of_turn(
    body: ev.TurnStarted | ev.TranscriptSent | ev.ModelResponded | ev.ModelAttemptEnded,
) -> _Line | None:
    match body:
        case ev.TurnStarted(turn=turn, attempt=attempt):
            again = f", attempt {attempt}" if attempt > 1 else ""
            last = ", without tools" if not body.allow_tools else ""
            return _Line("▶", f"turn {turn}", f"the model is asked{again}{last}", is_inner=False)
        case ev.TranscriptSent():
            return _Line("·", "transcript", "sent whole to a model-caller that had it not", QUIET)
        case ev.ModelResponded(message=message, stop_reason=reason, usage=usage):
            used = usage_text(usage)
            detail = f"{excerpt(message) or '(no text)'} ({reason}{', ' + used if used else ''})"
            return _Line("◀", "model", detail)
        case ev.ModelAttemptEnded(code=code, message=message, retry_at_ms=retry_at_ms):
            then = "; tried again" if retry_at_ms is not None else ""
            return _Line("✗", "model", f"{code}: {excerpt(message)}{then}", DOUBT)
        case _:
            assert_never(body)


_CallBody = (
    ev.ToolCallRequested
    | ev.ToolDispatched
    | ev.ToolStarted
    | ev.ToolAttemptEnded
    | ev.ToolAmbiguous
    | ev.ReconciliationAsked
    | ev.ReconciliationAnswered
    | ev.ToolCompleted
    | ev.ChildStarted
    | ev.ChildEnded
    | ev.ApprovalRequested
    | ev.DecisionRecorded
)


def _of_call(body: _CallBody, tool: str, run_id: str) -> _Line | None:
    match body:
        case ev.ToolCallRequested(arguments=arguments, effect=effect):
            return _Line("→", "call", f"{tool} {excerpt(arguments)} [{effect}]")
        case ev.ToolDispatched(attempt=attempt):
            # The first attempt is what a call is; only a further one is worth a line.
            return _Line("→", "again", f"{tool}, attempt {attempt}", DOUBT) if attempt > 1 else None
        case ev.ToolStarted(attempt=attempt, worker=worker):
            return _Line("·", "claimed", f"{tool}, attempt {attempt}, by {excerpt(worker)}", QUIET)
        case ev.ToolAttemptEnded(attempt=attempt, reason=reason, message=message):
            then = "; tried again" if body.retry_at_ms is not None else ""
            told = f": {excerpt(message)}" if message else ""
            return _Line("✗", "no result", f"{tool}, attempt {attempt}, {reason}{told}{then}", DOUBT)
        case ev.ToolAmbiguous(attempt=attempt, reason=reason, message=message):
            told = f": {excerpt(message)}" if message else ""
            return _Line("?", "in doubt", f"{tool}, attempt {attempt}, may have run ({reason}){told}", DOUBT)
        case ev.ReconciliationAsked(tool=reconciler, ask=ask):
            again = f", for the {ask}. time" if ask > 1 else ""
            return _Line("?", "asked", f"{reconciler}: what became of {tool}?{again}", DOUBT)
        case ev.ReconciliationAnswered(answer=answer, message=message):
            then = "; asked again later" if body.retry_at_ms is not None else ""
            told = f": {excerpt(message)}" if message else ""
            style = OK if answer is Answer.HAPPENED else DOUBT
            return _Line("!", "answered", f"{answer.replace('_', ' ')}{told}{then}", style)
        case ev.ToolCompleted(content=content, is_error=is_error, source=source):
            how = "" if source is ResultSource.EXECUTED else f" [{source}]"
            label, style = ("error", DOUBT) if is_error else ("result", OK)
            return _Line("←", label, f"{tool}: {_whole(run_id, body)}{excerpt(content)}{how}", style)
        case ev.ChildStarted(child_id=child_id):
            return _Line("→", "run", f"{tool}: {child_id}")
        case ev.ChildEnded(child_id=child_id, state=state, usage=usage):
            used = usage_text(usage)
            return _Line("←", "ended", f"{child_id} {state}{', ' + used if used else ''}", QUIET)
        case ev.ApprovalRequested(kind=kind, call_id=call_id, verdicts=verdicts):
            why = "needs approval" if kind is PendingKind.APPROVAL else "may have run; nothing can tell"
            answers = " | ".join(verdict.replace("_", "-") for verdict in verdicts)
            return _Line("☝", "person", f"{tool} {why}: decide {call_id} {answers}", DOUBT)
        case ev.DecisionRecorded(verdict=verdict, decided_by=by, message=message, arguments=edited):
            told = f": {excerpt(message)}" if message else f", as {excerpt(edited)}" if edited else ""
            return _Line("☝", "decided", f"{tool}: {verdict.replace('_', '-')} by {excerpt(by)}{told}")
        case _:
            assert_never(body)


def _whole(run_id: str, body: ev.ToolCompleted) -> str:
    """Before the excerpt: a line ends where the terminal does, and this is there to be copied."""
    if body.blob is None:
        return ""
    return f"({body.blob.size} bytes, whole: perdure blob get {run_id} {excerpt(body.call_id)}) "


def _use_of(body: ev.SurplusRecorded) -> str:
    """What becomes of a late result."""
    if body.told is not None:
        return "the model is told of it"
    return "changes no state" if body.content is None else "kept as the call's result"


def _plain(data: bytes) -> str:
    try:
        value = cast("object", json.loads(data))
    except ValueError:
        return data.decode("utf-8", "replace")
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and "content" in value:  # a message
        value = cast("dict[str, object]", value)["content"]
        if isinstance(value, str):
            return value
    if isinstance(value, list):
        texts = [_block_text(block) for block in cast("list[object]", value)]
        if None not in texts:
            return " ".join(text for text in texts if text)
    return data.decode("utf-8", "replace")


def _block_text(block: object) -> str | None:
    """What a content block says, empty for blocks that are no text; None for what is no content block."""
    if not isinstance(block, dict) or "type" not in block:
        return None
    text = cast("dict[str, object]", block).get("text")
    return text if isinstance(text, str) else ""
