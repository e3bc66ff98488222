"""From the client's error codes to what a caller has to do about them.

The client marks errors as fatal, retriable or "abort the transaction". None of the three says what perdure
needs to know, whether the operation may still have taken effect; the sets below do. Sources: the Kafka
protocol's error table, KIP-360 and KIP-447 for transactions, and the client's transaction manager.
"""

# ruff: noqa: SLF001 - names with an underscore are public here: the client's own codes

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from perdure.schemas.errors import PerdureError
from perdure.topics.errors import ClientFatal, Fenced, OutcomeUnknown, TransactionAbortable, Unavailable

PARTITION_EOF: Final = KafkaError._PARTITION_EOF
NO_OFFSET: Final = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._NO_OFFSET,
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)
UNSUPPORTED: Final = frozenset({KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE})
BAD_SETTING: Final = frozenset({KafkaError._INVALID_ARG, KafkaError._NOT_IMPLEMENTED})

FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.UNRELEASED_INSTANCE_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
    }
)

# The request may have been received, and may yet be received, by the broker it was meant for.
INDEFINITE: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._DESTROY,
        KafkaError._OUTDATED,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.CONCURRENT_TRANSACTIONS,
    }
)

# A coordinator is being found, made or loaded, as on the first use of a new cluster.
MOVING: Final = frozenset(
    {
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)

# No new client will fare better: somebody has to change rights or settings first.
HOPELESS: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
    }
)

# A reader's trouble that passes, or that a callback tells about: silence is the right answer to the caller.
PASSING: Final = INDEFINITE | frozenset(
    {
        KafkaError._MAX_POLL_EXCEEDED,  # on_lost follows
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.GROUP_MAX_SIZE_REACHED,
    }
)


# Any call that serves callbacks raises a fatal error of the client, also one that is not its own. A delivery
# report or a log line that runs between the error and the call's return makes Python raise a SystemError
# instead, with the error as its cause or without any.
RAISED: Final = (KafkaException, SystemError)


def error_of(raised: KafkaException | SystemError) -> KafkaError:
    """The client's own error inside what a call raised; a bare ``_FATAL`` where it was lost on the way."""
    cause: BaseException | None = raised
    while cause is not None and not isinstance(cause, KafkaException):
        cause = cause.__cause__
    if cause is None or not isinstance(cause.args[0], KafkaError):
        return KafkaError(KafkaError._FATAL, f"lost on its way ({raised})", fatal=True)
    return cause.args[0]


def is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() == KafkaError._FATAL


def is_nameless(error: KafkaError) -> bool:
    return error.code() == KafkaError._FATAL


def is_fenced(error: KafkaError) -> bool:
    return _is_one_of(error, FENCED)


def is_unsupported(error: KafkaError) -> bool:
    return _is_one_of(error, UNSUPPORTED)


def _is_one_of(error: KafkaError, codes: frozenset[int]) -> bool:
    """A consumer may report a fatal error as a message, which names its cause in the client's words only."""
    return error.code() in codes or (
        is_fatal(error) and any(KafkaError(c).str() in error.str() for c in codes)
    )


def told(error: KafkaError) -> str:
    """One sentence naming the broker's or client's code."""
    return f"{error.name()}: {error.str()}."


def of_transaction(error: KafkaError, *, definite: bool) -> PerdureError:
    """What an error of a transactional call means.

    ``definite``: nothing that could have committed the transaction was sent, so that an error which the
    client calls abortable really leaves it uncommitted.
    """
    code = error.code()
    if code in FENCED:
        return Fenced(told(error))
    if code in HOPELESS:
        return ClientFatal(told(error))
    if code in INDEFINITE or error.retriable() or error.fatal():
        return OutcomeUnknown(told(error))
    if definite and error.txn_requires_abort():
        return TransactionAbortable(told(error))
    return OutcomeUnknown(told(error))


class NotYet(Unavailable):
    """The broker can not answer yet."""


def of_question(error: KafkaError) -> PerdureError:
    """What an error means for a question that changes nothing; :class:`NotYet` if it was refused at once."""
    if error.code() in HOPELESS:
        return ClientFatal(told(error))
    return (NotYet if error.code() in MOVING else Unavailable)(told(error))
