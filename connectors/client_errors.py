"""What a client of the topics may have to deal with."""

from __future__ import annotations

from perdure.schemas.errors import Reject, Retry


class RunIdRefused(Reject):
    """This is no run id that a client may choose."""

    code = "run_id_refused"
    remedy = "Use 1-128 of letters, digits, dot, underscore, colon and hyphen."


class InputRefused(Reject):
    """This is no input of a run."""

    code = "input_refused"
    remedy = "Pass a text that is not empty, or a list of content blocks of the Messages API."


class UnknownRun(Reject):
    """There is no such run."""

    code = "unknown_run"
    remedy = "Check run id (`perdure runs`) and namespace; a run that was just submitted needs a moment."


class NothingPending(Reject):
    """Nobody is asked to decide about this."""

    code = "nothing_pending"
    remedy = "See `perdure show RUN`: it may have been decided, or the run may have ended."


class SeveralPending(Reject):
    """Several calls of the run wait for a decision."""

    code = "several_pending"
    remedy = "Name the call."


class CommandRefused(Reject):
    """The run refused the command; nothing has changed.

    ``reason`` is stable: run_exists, run_terminal, unknown_call, not_pending, already_decided,
    token_mismatch, decision_expired, verdict_not_allowed, invalid_result ... (docs/PROTOCOL.md has all).
    """

    code = "command_refused"
    remedy = "Look at the run (`perdure show RUN`) and decide anew."

    def __init__(self, reason: str, kind: str, message: str = "") -> None:
        super().__init__(f"{kind}: {reason}{f' ({message})' if message else ''}.")
        self.reason = reason


class NoAnswerYet(Retry):
    """The answer to the command has not been seen in time; it may still come."""

    code = "no_answer_yet"
    remedy = "Check that an orchestrator runs (`perdure doctor`), then look again."


class NoOutcomeYet(Retry):
    """The run has not ended in time."""

    code = "no_outcome_yet"
    remedy = "Wait again, or see what it waits for (`perdure show RUN`)."
