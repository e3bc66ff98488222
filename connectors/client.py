"""The Python API of the topics: submit runs, follow them, decide, cancel.

::

    with Client("127.0.0.1:9092") as client:
        run_id = client.submit(support, "Tell Ada that her parcel has arrived.")
        print(client.outcome(run_id, timeout_s=60).output)

A client holds no state that matters: everything it says is read from the log, committed records only. Reading
one run's events means reading its partition from the start (a partition holds many runs); that costs about a
second for a few 100,000 events and no index has to be kept right.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, cast

import msgspec

from perdure.connectors.agent import Agent
from perdure.connectors.client_errors import (
    CommandRefused,
    InputRefused,
    NoAnswerYet,
    NoOutcomeYet,
    NothingPending,
    RunIdRefused,
    SeveralPending,
    UnknownRun,
)
from perdure.connectors.command_sender import CommandSender, new_run_id
from perdure.connectors.refusals import Refusals, RunRefused
from perdure.connectors.runs_reader import RunsReader
from perdure.connectors.settings import Settings, load_settings
from perdure.connectors.topic_reader import TopicReader, describe_topic
from perdure.processors.clock import Clock, Entropy, SystemClock, SystemEntropy, new_id
from perdure.processors.definitions import DefinitionBook, publish
from perdure.schemas.canonical import NotJson, dumps_verbatim
from perdure.schemas.codec import decode, encode
from perdure.schemas.commands import Cancel, Command, CommandBody, Decide, Fork, Resume, Signal, Submit
from perdure.schemas.events import (
    CommandRejected,
    Event,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunTimedOut,
    SurplusRecorded,
)
from perdure.schemas.keys import FAMILY_MARK
from perdure.schemas.outputs import Approval, DeadLetter, Outcome, Status
from perdure.schemas.values import RUN_ID_PATTERN, Budget, Provenance, Verdict
from perdure.topics.log import Log, Record
from perdure.topics.partitioner import partition_of
from perdure.topics.table import RUN_APPROVALS, RUN_EVENTS, RUN_OUTCOMES, RUN_STATUS, Namespace

LOOK_S: Final = 0.25
ANSWER_TIMEOUT_S: Final = 10.0
ENDINGS: Final = (RunCompleted, RunFailed, RunCancelled, RunTimedOut)


class Client:
    """One connection to the topics of perdure. Not for several threads at once.

    Args:
        settings: a Settings record, or just the bootstrap address; by default what file and environment say.
        log: the log to use instead of Kafka, for tests.
        clock: time, for tests.
        entropy: randomness, for tests.
    """

    def __init__(
        self,
        settings: Settings | str | None = None,
        *,
        log: Log | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        match settings:
            case None:
                settings = load_settings(os.environ).settings
            case str():
                settings = load_settings(os.environ, flags={"bootstrap": settings}).settings
            case Settings():
                pass
        self.settings: Settings = settings
        self._namespace = Namespace(settings.namespace)
        self._log = log or _kafka(settings)
        self._clock: Clock = clock or SystemClock()
        self._entropy: Entropy = entropy or SystemEntropy()
        self._client_id = f"{settings.namespace}.client"
        self._sender = CommandSender(self._log, self._namespace, self._client_id)
        self._submitted = ("", "")  # run and command id of the last submit

    def submit(
        self,
        agent: Agent | str,
        input: str | Sequence[Mapping[str, Any]],  # noqa: A002 - what everybody calls it
        *,
        run_id: str | None = None,
        version: str | None = None,
        command_id: str | None = None,
        deadline_s: float | None = None,
        delay_s: float | None = None,
        max_turns: int | None = None,
        budget: Budget | None = None,
        provenance: Provenance | None = None,
    ) -> str:
        """Ask for a run of ``agent``; durable when this returns. Returns the run id.

        Args:
            agent: an Agent (then its version is asked for) or its name. It must have been published
                (:meth:`publish`; workers publish what they serve); until then the run waits, queued.
            input: a text, or content blocks of the Messages API.
            run_id: chosen by the caller, for example an order number; a new ULID by default.
            version: of the agent; the newest published one by default.
            command_id: sending the same again with the same id changes nothing. By default it is derived
                from the content, so that a repeated call with the same run_id is harmless, and one with
                another input is refused (``run_exists``).
            deadline_s: seconds from now after which the run is ended.
            delay_s: seconds from now before which it does not start.
            max_turns: narrows what the agent allows.
            budget: narrows what the agent allows: tokens of each kind, and money in 1e-9 US dollars. The
                worst case of each turn is reserved before the model is asked; what does not fit ends the
                run (``budget_exceeded``). A budget in money for a model whose price is not known is
                refused (``price_unknown``, see :meth:`accepted`).
            provenance: correlation id, tenant, labels, trace context, sender; copied into every outcome.

        Raises:
            RunIdRefused, InputRefused, RecordTooLarge: nothing was sent.
            OutcomeUnknown: it may have been sent; call again with the same run_id.
            TopicMissing, Unavailable.
        """
        chosen = run_id if run_id is not None else new_run_id(self._clock, self._entropy)
        if RUN_ID_PATTERN.fullmatch(chosen) is None or "~" in chosen:
            raise RunIdRefused(f"{chosen!r}.")
        asked = Submit(
            agent=agent if isinstance(agent, str) else agent.name,
            input=_input(input),
            version=version if version is not None or isinstance(agent, str) else agent.version,
            deadline_ms=None if deadline_s is None else round(deadline_s * 1000),
            not_before_ms=None if delay_s is None else round(delay_s * 1000),
            max_turns=max_turns,
            budget=budget,
        )
        command_id = command_id or _content_id("submit", asked)
        self._send(chosen, _from_now(asked, self._clock), command_id, provenance)
        self._submitted = (chosen, command_id)
        return chosen

    def accepted(self, run_id: str, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Wait until a submitted run exists.

        Raises:
            RunRefused: it was refused, with the stable reason: price_unknown, invalid_input ...
            NoAnswerYet: neither was seen within ``timeout_s``.
        """
        give_up_s = self._deadline(timeout_s)
        command_id = self._submitted[1] if self._submitted[0] == run_id else None
        with self._reader(RUN_EVENTS, run_id) as reader, self._refusals() as refusals:
            while self._clock.boot_s() <= give_up_s:
                if any(_is_of(record, run_id) for record in reader.more(LOOK_S)):
                    return
                refused = refusals.of(run_id, command_id) if reader.at_end else None
                if refused is not None:
                    raise RunRefused(refused)
        raise NoAnswerYet(f"Run {run_id}, after {timeout_s} s.")

    def refusal(self, run_id: str) -> DeadLetter | None:
        """Why a command of this id was set aside; None: none was, as far as dead-letters are kept."""
        with self._refusals() as refusals:
            return refusals.of(run_id)

    def _refusals(self) -> Refusals:
        return Refusals(self._log, self._clock, self._namespace, self._client_id)

    def publish(self, agent: Agent) -> str:
        """Make the agent's definition known if it is not; returns its content hash."""
        book = DefinitionBook(self._log, self._namespace, self._clock, self._client_id)
        producer = self._log.producer(self._client_id)
        try:
            return publish(agent.definition(), book, producer, self._namespace, self._clock)
        finally:
            producer.close()
            book.close()

    def outcome(
        self, run_id: str, timeout_s: float | None = None, *, execution: int | None = None
    ) -> Outcome:
        """How the run ended: its last outcome, or that of one execution (they are counted from 0).

        Waits for it, at most ``timeout_s`` seconds (None: without end). Raises :class:`NoOutcomeYet`.
        """
        found: Outcome | None = None
        give_up_s = self._deadline(timeout_s)
        with self._reader(RUN_OUTCOMES, run_id) as reader:
            records = list(reader.to_end())
            while True:
                for record in records:
                    if record.key == run_id.encode() and record.value is not None:
                        outcome = decode(Outcome, record.value)
                        if execution is None or outcome.execution == execution:
                            found = outcome
                if found is not None:
                    return found
                if self._clock.boot_s() > give_up_s:
                    raise NoOutcomeYet(f"Run {run_id}, after {timeout_s} s.")
                records = reader.more(LOOK_S)

    def events(self, run_id: str, *, follow: bool = False, timeout_s: float | None = None) -> Iterator[Event]:
        """The run's history, in order. ``follow``: go on until the run has ended, or ``timeout_s`` is over.

        An unknown run has no events; that is no error here, for its submit may be on its way. Of a purged
        one only ``RunPurged`` is left.
        """
        give_up_s = self._deadline(timeout_s)
        ended = False
        with self._reader(RUN_EVENTS, run_id) as reader:
            records: Iterable[Record] = _not_deleted(reader.to_end(), run_id)
            while True:
                for record in records:
                    if _is_of(record, run_id) and record.value is not None:
                        event = decode(Event, record.value)
                        # rejected commands and late results follow an end without undoing it
                        ended = isinstance(event.body, ENDINGS) or (ended and _changes_nothing(event))
                        yield event
                if ended or not follow or self._clock.boot_s() > give_up_s:
                    return
                records = reader.more(LOOK_S)

    def status(self, run_id: str) -> Status:
        """Where the run stands, about a second old at most. Raises :class:`UnknownRun`."""
        with self._reader(RUN_STATUS, run_id) as reader:
            found = _newest(reader, lambda record: record.key == run_id.encode())
        if run_id not in found:
            raise UnknownRun(f"{run_id}.")
        return found[run_id]

    def runs(self) -> list[Status]:
        """Every run that is kept, newest first. Reads all of run-status; a view is faster where there are
        many.
        """
        with RunsReader(self._log, self._clock, self._namespace, self._client_id) as reader:
            return list(reader.to_end().statuses())

    def approvals(self, run_id: str | None = None) -> list[Approval]:
        """What people are asked now, oldest first: of one run, or of all."""
        pending: dict[bytes, Approval] = {}
        with self._reader(RUN_APPROVALS, run_id) as reader:
            for record in reader.to_end():
                if record.key is None or not _is_of(record, run_id):
                    continue
                if record.value is None:
                    pending.pop(record.key, None)
                else:
                    pending[record.key] = decode(Approval, record.value)
        return sorted(pending.values(), key=lambda approval: approval.requested_ms)

    def approval(self, run_id: str, call_id: str | None = None) -> Approval:
        """What is asked about one call; ``call_id`` may be left out if the run waits for one decision only.

        Raises :class:`NothingPending` or :class:`SeveralPending`.
        """
        found = [each for each in self.approvals(run_id) if call_id in {None, each.call_id}]
        if not found:
            raise NothingPending(f"Run {run_id}{f', call {call_id}' if call_id else ''}.")
        if len(found) > 1:
            raise SeveralPending(f"They are {', '.join(each.call_id for each in found)}.")
        return found[0]

    def approve(self, asked: Approval, *, by: str, arguments: Mapping[str, Any] | None = None) -> str:
        """Let the call be made. ``by``: who decided. This and its kin return the command's id
        (:meth:`answered`).

        ``asked`` is what was shown to the person: the decision holds for exactly that. ``arguments``: put in
        place of the model's, which is told so; they have to match the tool's schema.
        """
        if arguments is None:
            return self._decide(asked, Verdict.APPROVE, by)
        try:
            edited = dumps_verbatim(arguments)
        except NotJson as error:
            raise InputRefused(f"The arguments are no JSON: {error.detail}") from error
        return self._decide(asked, Verdict.APPROVE, by, arguments=edited)

    def reject(self, asked: Approval, *, by: str, message: str | None = None) -> str:
        """Do not let the call be made; ``message`` is told to the model."""
        return self._decide(asked, Verdict.REJECT, by, message=message)

    def ran(self, asked: Approval, result: Any, *, by: str) -> str:
        """The doubtful call did take effect, with this result: a text, content blocks, or any JSON value."""
        try:
            encoded = dumps_verbatim(result)
        except NotJson as error:
            raise InputRefused(f"The result is no JSON: {error.detail}") from error
        return self._decide(asked, Verdict.RAN, by, result=encoded)

    def did_not_run(self, asked: Approval, *, by: str) -> str:
        """The doubtful call did not take effect and cannot any more: it is made once again."""
        return self._decide(asked, Verdict.DID_NOT_RUN, by)

    def give_up(self, asked: Approval, *, by: str, message: str | None = None) -> str:
        """Nobody can tell: the model gets an error result, ``message`` if given."""
        return self._decide(asked, Verdict.GIVE_UP, by, message=message)

    def cancel(self, run_id: str, reason: str = "cancelled by a client") -> str:
        """End the run now. Calls that were started are told to stop and recorded when they do."""
        return self._send(run_id, Cancel(reason))

    def resume(
        self,
        run_id: str,
        *,
        message: str | None = None,
        extra_turns: int | None = None,
        budget: Budget | None = None,
    ) -> str:
        """Start a failed, cancelled or timed out run again, as its next execution.

        Args:
            run_id: the run.
            message: told to the model with the next turn.
            extra_turns: raises the run's limit by so many.
            budget: replaces the run's budget; totals go on.
        """
        return self._send(run_id, Resume(message, extra_turns, budget))

    def signal(self, run_id: str, message: str) -> str:
        """Send a message into a running run; its next turn tells it to the model."""
        return self._send(run_id, Signal(message))

    def fork(
        self,
        run_id: str,
        *,
        turn: int | None = None,
        message: str | None = None,
        fork_id: str | None = None,
        max_turns: int | None = None,
        budget: Budget | None = None,
        deadline_s: float | None = None,
        provenance: Provenance | None = None,
    ) -> str:
        """Start a new run where another one stood at the end of a turn; returns the new run's id.

        The source is not touched and none of its calls is made again: what they answered is shared.

        Args:
            run_id: the source, in any state.
            turn: the turn after which to go on; the last completed one by default.
            message: told to the model with the fork's first turn. Needed where the turn called no tools.
            fork_id: what follows the source's id and ``~`` in the new id; random by default.
            max_turns: of the fork's own turns.
            budget: narrows what it may use; the source's use does not count.
            deadline_s: the fork is ended after so many seconds.
            provenance: by default the source's.
        """
        new = f"{run_id}{FAMILY_MARK}{fork_id or new_id(self._entropy)}"
        deadline_ms = None if deadline_s is None else self._clock.wall_ms() + round(deadline_s * 1000)
        asked = Fork(turn, message, max_turns, budget)
        command_id = _content_id("fork", asked)
        self._send(new, msgspec.structs.replace(asked, deadline_ms=deadline_ms), command_id, provenance)
        return new

    def answered(self, run_id: str, command_id: str, timeout_s: float = ANSWER_TIMEOUT_S) -> Event:
        """Wait for the run's answer to a command: the first event that it caused.

        Raises:
            CommandRefused: with the stable reason.
            UnknownRun: there is no event of such a run after ``timeout_s``.
            NoAnswerYet: the run exists, but has not answered within ``timeout_s``.
        """
        give_up_s = self._deadline(timeout_s)
        exists = False
        with self._reader(RUN_EVENTS, run_id) as reader:
            while self._clock.boot_s() <= give_up_s:
                for record in reader.more(LOOK_S):
                    if not _is_of(record, run_id) or record.value is None:
                        continue
                    exists = True
                    event = decode(Event, record.value)
                    if event.answers_command and event.cause == command_id:
                        if isinstance(event.body, CommandRejected):
                            raise CommandRefused(event.body.reason, event.body.kind, event.body.message)
                        return event
        raise (NoAnswerYet if exists else UnknownRun)(f"Run {run_id}, after {timeout_s} s.")

    def close(self) -> None:
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _decide(self, asked: Approval, verdict: Verdict, by: str, **more: Any) -> str:
        body = Decide(call_id=asked.call_id, verdict=verdict, token=asked.token, decided_by=by, **more)
        return self._send(asked.run_id, body)

    def _send(
        self,
        run_id: str,
        body: CommandBody,
        command_id: str | None = None,
        provenance: Provenance | None = None,
    ) -> str:
        command_id = command_id or new_id(self._entropy)
        self._sender.send(run_id, Command(body, command_id, provenance or Provenance()))
        return command_id

    def _reader(self, name: str, run_id: str | None = None) -> TopicReader:
        topic = self._namespace.topic(name)
        partitions: list[int] | None = None
        if run_id is not None:
            partitions = [partition_of(run_id, describe_topic(self._log, topic).partitions)]
        return TopicReader(self._log, self._clock, topic, partitions, self._client_id)

    def _deadline(self, timeout_s: float | None) -> float:
        return float("inf") if timeout_s is None else self._clock.boot_s() + timeout_s


def _kafka(settings: Settings) -> Log:
    from perdure.topics.kafka_log import KafkaLog

    return KafkaLog(settings.bootstrap, settings.kafka)


def _input(value: str | Sequence[Mapping[str, Any]]) -> bytes:
    if isinstance(value, str):
        if not value.strip():
            raise InputRefused
        return dumps_verbatim(value)
    blocks = list(value)
    if not blocks or not all(_is_block(block) for block in blocks):
        raise InputRefused("A content block is an object with a type.")
    try:
        return dumps_verbatim(blocks)
    except NotJson as error:
        raise InputRefused(str(error.detail)) from error


def _is_block(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(cast("Mapping[object, object]", value).get("type"), str)


def _content_id(kind: str, asked: Submit | Fork) -> str:
    """Equal requests have equal ids; ``asked`` still holds spans where the command holds instants."""
    return f"{kind}-{hashlib.sha256(encode(Command(asked))).hexdigest()[:32]}"


def _from_now(asked: Submit, clock: Clock) -> Submit:
    now_ms = clock.wall_ms()
    return msgspec.structs.replace(
        asked,
        deadline_ms=None if asked.deadline_ms is None else now_ms + asked.deadline_ms,
        not_before_ms=None if asked.not_before_ms is None else now_ms + asked.not_before_ms,
    )


def _changes_nothing(event: Event) -> bool:
    return isinstance(event.body, CommandRejected | SurplusRecorded)


def _not_deleted(records: Iterable[Record], run_id: str) -> list[Record]:
    """The records of a run without those that were deleted later on."""
    newest = {record.key: record for record in records if _is_of(record, run_id)}
    return [record for record in newest.values() if record.value is not None]


def _is_of(record: Record, run_id: str | None) -> bool:
    return run_id is None or (record.key or b"").startswith(f"{run_id}/".encode())


def _newest(reader: TopicReader, wanted: Callable[[Record], bool]) -> dict[str, Status]:
    """The status of each run with the highest seq; tombstones remove."""
    found: dict[str, Status] = {}
    for record in reader.to_end():
        if not wanted(record) or record.key is None:
            continue
        if record.value is None:
            found.pop(record.key.decode(), None)
            continue
        status = decode(Status, record.value)
        held = found.get(status.run_id)
        if held is None or held.seq <= status.seq:
            found[status.run_id] = status
    return found
