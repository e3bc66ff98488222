"""Forks: a new run goes on where another one stood at the end of a turn.

The source is not touched and none of its calls is ever made again: those of its turn come with their results,
and the messages before are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.processors.machine.apply_calls import CALL_ID_HASH_BYTES
from perdure.processors.machine.budget import narrowed, transcript_tokens_max
from perdure.processors.machine.children import CHILD_MARK
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.inputs import Source
from perdure.processors.machine.messages import clean_text
from perdure.processors.machine.resume import start_if_possible
from perdure.processors.machine.room import TEXTS_BYTES_MAX
from perdure.processors.machine.submits import Fault
from perdure.processors.machine.transcript import extend_digest, start_digest
from perdure.schemas import commands as cmd
from perdure.schemas import events as ev
from perdure.schemas.canonical import canonical_json, dumps_verbatim, loads_json
from perdure.schemas.keys import FAMILY_MARK, source_of
from perdure.schemas.limits import RUN_ID_SUFFIX_CHARS_MAX
from perdure.schemas.values import RUN_ID_PATTERN, ForkPoint, KeptCall, Provenance

GENERATIONS_MAX: Final = 8
"""Of forks and children in one run id."""


def fork_fault(draft: Draft, run_id: str, body: cmd.Fork) -> Fault | None:
    """What is wrong with what is asked; None if nothing is."""
    source = draft.context.source
    suffix = run_id.rpartition(FAMILY_MARK)[2]
    if RUN_ID_PATTERN.fullmatch(run_id) is None or source_of(run_id) is None or suffix.startswith(CHILD_MARK):
        told = f"{FAMILY_MARK} and 1-{RUN_ID_SUFFIX_CHARS_MAX} characters, not {CHILD_MARK}..."
        return "invalid_run_id", f"{run_id!r} is no id of a fork: the source's id, {told}"
    if run_id.count(FAMILY_MARK) > GENERATIONS_MAX:
        return "too_many_generations", f"a run id may name {GENERATIONS_MAX} generations"
    if source is None:
        return "unknown_source", f"there is no run {source_of(run_id)}"
    return _turn_fault(draft, source, body) or _options_fault(draft, source, body)


def _turn_fault(draft: Draft, source: Source, body: cmd.Fork) -> Fault | None:
    run = source.run
    turn = _turn(source, body)
    if source.messages is None:
        return "no_such_turn", f"{run.run_id} has not completed turn {turn}; it has {run.turns_completed}"
    if turn == run.turn and not all(call.is_done for call in run.calls):
        return "turn_not_finished", f"turn {turn} of {run.run_id} has calls without a result"
    if draft.context.definition is None:
        return "unknown_agent", f"the definition of {run.agent} is not known"
    return None


def _options_fault(draft: Draft, source: Source, body: cmd.Fork) -> Fault | None:
    message = body.message
    if message is not None and not message.strip():
        return "empty_message", "the message is blank"
    if message is not None and len(dumps_verbatim(clean_text(message))) > TEXTS_BYTES_MAX:
        return "message_too_large", f"a message takes at most {TEXTS_BYTES_MAX} bytes"
    if message is None and not _kept_calls(source, _turn(source, body)):
        return "message_needed", "the source's turn called no tools, so there is nothing to go on from"
    if body.max_turns is not None and body.max_turns < 1:
        return "invalid_max_turns", "max_turns is less than 1"
    if body.deadline_ms is not None and body.deadline_ms <= draft.now_ms:
        return "deadline_passed", "the run's deadline has passed"
    budget = narrowed(draft.definition.budget, body.budget)
    if draft.context.price is None and budget is not None and budget.cost_nano_usd is not None:
        return "price_unknown", f"a budget in money needs the price of {draft.definition.model}"
    return None


def fork(draft: Draft, body: cmd.Fork, provenance: Provenance) -> None:
    """Create the fork, and start it if it may. There must be no fault in what is asked."""
    source = draft.context.source
    assert source is not None
    assert source.messages is not None
    run, definition = source.run, draft.definition
    assert run.definition is not None
    turn = _turn(source, body)
    hashes = CALL_ID_HASH_BYTES * sum(len(_uses(message)) for message in source.messages)
    draft.emit(
        ev.RunCreated(
            agent=run.agent,
            version=run.version,
            definition=run.definition,
            input=dumps_verbatim(clean_text(body.message or "")),
            provenance=run.provenance if provenance == Provenance() else provenance,
            max_turns=turn + min(definition.max_turns, body.max_turns or definition.max_turns),
            deadline_ms=body.deadline_ms,
            budget=narrowed(definition.budget, body.budget),
            fork=ForkPoint(
                source=run.run_id,
                turn=turn,
                message_count=len(source.messages),
                digest=extend_digest(start_digest(run.definition), *source.messages),
                call_id_hashes=run.seen_call_ids[:hashes],
                calls=_kept_calls(source, turn),
                input_tokens_max=transcript_tokens_max(definition, source.messages),
            ),
        )
    )
    start_if_possible(draft)


def wanted_turn(turns_completed: int, body: cmd.Fork) -> int:
    """The turn after which to fork."""
    return turns_completed if body.turn is None else body.turn


def _turn(source: Source, body: cmd.Fork) -> int:
    return wanted_turn(source.run.turns_completed, body)


def _kept_calls(source: Source, turn: int) -> tuple[KeptCall, ...]:
    """The calls of the turn with their results, out of the run's row or out of the message that told them."""
    run = source.run
    if turn == run.turn:
        calls = sorted(run.calls, key=lambda call: call.index)
        return tuple(
            KeptCall(call.call_id, call.tool, call.arguments, call.content or b'""', call.is_error)
            for call in calls
        )
    uses = {use["id"]: use for use in _uses(source.messages[-1])} if source.messages else {}
    return tuple(
        KeptCall(
            call_id=block["tool_use_id"],
            tool=uses[block["tool_use_id"]]["name"],
            arguments=canonical_json(uses[block["tool_use_id"]]["input"]),
            content=dumps_verbatim(block["content"]),
            is_error=block.get("is_error", False),
        )
        for block in _blocks(source.following)
        if block["type"] == "tool_result"
    )


def _uses(message: bytes) -> Sequence[dict[str, Any]]:
    return [block for block in _blocks(message) if block["type"] == "tool_use"]


def _blocks(message: bytes | None) -> Sequence[dict[str, Any]]:
    decoded: Any = loads_json(message) if message else {}
    content: list[dict[str, Any]] | str | None = decoded.get("content")
    return content if isinstance(content, list) else []
