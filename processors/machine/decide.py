"""decide: what happens next. Pure: everything it may know is an argument."""

from __future__ import annotations

from typing import assert_never

from perdure.processors.machine.commands import decide_command
from perdure.processors.machine.draft import Draft
from perdure.processors.machine.family import (
    decide_child,
    decide_child_ended,
    decide_parent_ended,
    tell_family,
)
from perdure.processors.machine.inputs import (
    ChildEndedInput,
    ChildInput,
    CommandInput,
    Context,
    Decided,
    Input,
    ParentEndedInput,
    PurgeInput,
    RefuseInput,
    ResultInput,
    StartInput,
    TimerInput,
)
from perdure.processors.machine.purge import decide_purge
from perdure.processors.machine.replies import decide_reply
from perdure.processors.machine.results import decide_tool_result
from perdure.processors.machine.resume import start_if_possible
from perdure.processors.machine.state import Run
from perdure.processors.machine.timers import decide_timer
from perdure.schemas.results import Lost, ModelFailed, ModelReplied, NeedTranscript

UNKNOWN_RUN = "unknown_run"


def decide(run: Run | None, given: Input, context: Context) -> Decided:
    """The answer to ``given`` in the state ``run``: events to persist and outputs that are no state.

    Never raises for anything an input may hold. An input that no event can answer is refused (RefuseInput).
    The host has already dropped inputs whose cause was seen before.
    """
    match given:
        case CommandInput():
            draft = Draft(given.run_id, run, context)
            decide_command(draft, given, exists=run is not None)
        case ResultInput():
            draft = Draft(given.result.run_id, run, context)
            _decide_result(draft, given, exists=run is not None)
        case TimerInput():
            draft = Draft(given.run_id, run, context)
            if run is not None:
                decide_timer(draft)
        case StartInput():
            draft = Draft(given.run_id, run, context)
            if run is not None:
                start_if_possible(draft)
        case PurgeInput():
            draft = Draft(given.run_id, run, context)
            if run is not None:
                decide_purge(draft)
        case ChildInput():
            draft = Draft(given.run_id, run, context)
            decide_child(draft, given)
        case ChildEndedInput():
            draft = Draft(given.run_id, run, context)
            if run is not None:
                decide_child_ended(draft, given)
        case ParentEndedInput():
            draft = Draft(given.run_id, run, context)
            if run is not None:
                decide_parent_ended(draft)
        case _:
            assert_never(given)
    tell_family(draft)
    return draft.done()


def _decide_result(draft: Draft, given: ResultInput, *, exists: bool) -> None:
    result = given.result
    if isinstance(result.body, Lost):
        return  # the attempts it speaks of are resolved by their own deadlines; the host counts and logs it
    if not exists:
        draft.output(RefuseInput(UNKNOWN_RUN, f"a result for run {result.run_id!r}, which does not exist"))
        return
    draft.caused_by(result.result_id)
    if result.call_id == "" or isinstance(result.body, (ModelReplied, ModelFailed, NeedTranscript)):
        decide_reply(draft, result)
    else:
        decide_tool_result(draft, result)
