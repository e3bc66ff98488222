"""Errors of the Log port: what a caller of the log must do about each."""

from __future__ import annotations

from perdure.schemas.errors import Reject, Restore, Retry, Stop


class Unavailable(Retry):
    """The log did not answer a question in time; nothing was changed."""

    code = "log_unavailable"
    remedy = "Ask again; if it lasts, check that the brokers are up (perdure doctor)."


class TransactionAbortable(Retry):
    """The transaction can not be committed and has to be aborted."""

    code = "transaction_abortable"
    remedy = "Abort, drop the overlay, rewind to the last committed offsets, process the batch again."


class OutcomeUnknown(Restore):
    """Nobody can tell whether the operation took effect."""

    code = "outcome_unknown"
    remedy = "Close this producer, open a new one with the same transactional.id and redo the assignment."


class Fenced(Restore):
    """Another process owns this transactional.id, member or generation now."""

    code = "fenced"
    remedy = "Treat every partition as lost."


class OffsetOutOfRange(Restore):
    """The wanted offset is not in the log."""

    code = "offset_out_of_range"
    remedy = "Read the log's first offset; what lay below it is lost and has to be told."


class RecordTooLarge(Reject):
    """A record is larger than the log accepts."""

    code = "record_too_large"
    remedy = "Check sizes before produce; dead-letter the head, the digest and the position."


class ClientFatal(Stop):
    """The client instance is broken for good."""

    code = "client_fatal"
    remedy = "Start a new process."


class LogMisuse(Stop):
    """The log was used against its contract."""

    code = "log_misuse"
    remedy = "This is a defect in perdure; report it."
