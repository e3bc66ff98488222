"""Planted bugs of the pure machine: what is believed, what is charged, what others are told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from perdure.processors.machine import ambiguity, apply, decisions, project, replies, requests, resume, turns
from perdure.processors.machine.budget import Grant
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.requests import NOT_STARTED, answer_error, dispatch
from perdure.processors.machine.state import Attempt, Call, Run
from perdure.processors.orchestrator import outgoing
from perdure.schemas import events as ev
from perdure.schemas.outputs import Outcome
from perdure.schemas.values import ResultSource, Usage
from simulator.patching import Patches, always


def believe_negative_at_once() -> Patches:
    """A reconciliation tool that found no trace is believed, whenever it was asked."""

    def did_not_happen(draft: Draft, call: Call) -> None:
        assert call.attempt is not None
        ended = ev.ToolAttemptEnded(
            draft.run.turn, call.call_id, call.attempt.number, "did_not_happen", "no trace", retry_at_ms=None
        )
        draft.emit(ended)
        dispatch(draft, call.call_id)

    return [(ambiguity, "did_not_happen", did_not_happen)]


def retry_on_a_timer() -> Patches:
    """A non_idempotent attempt of which nothing is heard is dispatched again."""

    def become_ambiguous(draft: Draft, call: Call, reason: str, message: str) -> None:
        assert call.attempt is not None
        number = call.attempt.number
        draft.emit(ev.ToolAttemptEnded(draft.run.turn, call.call_id, number, reason, message, None))
        dispatch(draft, call.call_id)

    return [(ambiguity, "become_ambiguous", become_ambiguous)]


def no_settling() -> Patches:
    """What the outside service may still be doing is not waited for."""

    def did_not_happen(draft: Draft, call: Call) -> None:
        assert call.attempt is not None
        early: Attempt = replace(call.attempt, deadline_ms=call.attempt.opened_ms)
        tools = tuple(replace(tool, settle_ms=0) for tool in draft.definition.tools)
        context = replace(draft.context, definition=replace(draft.definition, tools=tools))
        before, draft.context = draft.context, context
        try:
            original(draft, replace(call, attempt=early))
        finally:
            draft.context = before

    original = ambiguity.did_not_happen
    return [(ambiguity, "did_not_happen", did_not_happen)]


def not_started_without_proof() -> Patches:
    """A call that was under way when its run ended is said not to have been started."""

    def take_up(draft: Draft, call: Call) -> None:
        if call.late_content is None:
            answer_error(draft, call.call_id, NOT_STARTED, ResultSource.SYNTHETIC)
        else:
            original(draft, call)

    original = resume._take_up
    return [(resume, "_take_up", take_up)]


def suspect_did_not_run() -> Patches:
    """A suspect call did not run, whether its claim was read or not."""

    def become_ambiguous(draft: Draft, call: Call, reason: str, message: str) -> None:
        if reason == "suspect":
            ambiguity.did_not_run(draft, call, reason, message)
        else:
            original(draft, call, reason, message)

    original = ambiguity.become_ambiguous
    return [(ambiguity, "become_ambiguous", become_ambiguous)]


def usage_twice() -> Patches:
    """The usage of a late answer counts twice."""

    def surplus(run: Run, at_ms: int, body: ev.SurplusRecorded) -> Run:
        run = original(run, at_ms, body)
        return replace(run, usage=run.usage + body.usage)

    original = apply._surplus
    return [(apply, "_surplus", surplus)]


def late_usage_forgotten() -> Patches:
    """An answer that comes too late costs nothing."""
    return [(replies, "_late", always(None))]


def no_reservation() -> Patches:
    """The model is asked whatever the budget says."""

    def grant(run: Run, definition: Any, *_: Any) -> Grant:  # noqa: ARG001
        return Grant(definition.max_tokens, Usage())

    return [(turns, "grant", grant)]


def doubt_costs_nothing() -> Patches:
    """An attempt whose usage is not known is charged nothing."""

    def ended(model: Any, code: str, message: str, retry_at_ms: int | None, usage: Usage | None) -> Any:
        return original(model, code, message, retry_at_ms, usage or Usage())

    original = replies._ended
    return [(replies, "_ended", ended)]


def one_outcome_per_run() -> Patches:
    """A resumed run has no further outcome."""

    def projected(before: Run | None, event: ev.Event, after: Run) -> tuple[Any, ...]:
        found = original(before, event, after)
        return tuple(
            each for each in found if not (isinstance(each.record, Outcome) and each.record.execution > 0)
        )

    original = project.project
    return [(outgoing, "project", projected)]


def questions_stay() -> Patches:
    """A question that nobody need answer any more stays in the inbox."""
    return [(project, "_withdrawn", always([]))]


def any_token() -> Patches:
    """Any resume token will do."""
    return [(decisions, "token_fault", always(None))]


def key_with_attempt() -> Patches:
    """The idempotency key is made of something else."""

    def key(run_id: str, call_id: str) -> str:
        return hashlib.sha256(f"{run_id}/{call_id}".encode()).hexdigest()

    return [(requests, "idempotency_key", key)]


def approve_is_enough() -> Patches:
    """A person who says that a call ran has licensed another attempt."""

    def follow(draft: Draft, body: Any) -> None:
        dispatch(draft, body.call_id)

    return [(decisions, "_follow", follow)]


PLANTS: Final[Mapping[str, Callable[[], Patches]]] = {
    "believe-negative-at-once": believe_negative_at_once,
    "retry-on-a-timer": retry_on_a_timer,
    "no-settling": no_settling,
    "not-started-without-proof": not_started_without_proof,
    "suspect-did-not-run": suspect_did_not_run,
    "usage-twice": usage_twice,
    "late-usage-forgotten": late_usage_forgotten,
    "no-reservation": no_reservation,
    "doubt-costs-nothing": doubt_costs_nothing,
    "one-outcome-per-run": one_outcome_per_run,
    "questions-stay": questions_stay,
    "any-token": any_token,
    "key-with-attempt": key_with_attempt,
    "approve-is-enough": approve_is_enough,
}
