"""The checker: what the committed log and the ground truth say, counted by others' code alone.

It reads run-events and run-outcomes as any consumer would (confluent-kafka, read_committed, fastavro and the
.avsc files) and the file in which every tool leaves a line, and knows nothing of how perdure works inside.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from chaos.outside import Codec

EVENTS: Final = "run-events"
OUTCOMES: Final = "run-outcomes"
DEAD_LETTERS: Final = "dead-letters"
PARTITION_EOF: Final = -191
TERMINAL: Final = frozenset({"RunCompleted", "RunFailed", "RunCancelled", "RunTimedOut"})
AFTER_THE_END: Final = frozenset({"SurplusRecorded", "CommandRejected", "RunResumed"})
ASK_S: Final = 20.0
NON_IDEMPOTENT: Final = "non_idempotent"
IDEMPOTENT_WRITE: Final = "idempotent_write"


class Reader:
    """Reads topics of one namespace from their beginning, on and on."""

    def __init__(self, bootstrap: str, namespace: str, topics: Iterable[str]) -> None:
        self._prefix = f"{namespace}."
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{namespace}-checker",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
        self._partitions = [
            TopicPartition(f"{self._prefix}{topic}", number, 0)
            for topic in topics
            for number in self._consumer.list_topics(f"{self._prefix}{topic}", timeout=ASK_S)
            .topics[f"{self._prefix}{topic}"]
            .partitions
        ]
        self._consumer.assign(self._partitions)

    def more(self, wait_s: float) -> list[tuple[str, bytes, bytes | None]]:
        """(topic without prefix, key, value) of what came within the time."""
        found: list[tuple[str, bytes, bytes | None]] = []
        for message in self._consumer.consume(1_000, wait_s):
            error = message.error()
            if error is None:
                topic = (message.topic() or "").removeprefix(self._prefix)
                found.append((topic, message.key() or b"", message.value()))
            elif error.code() != PARTITION_EOF and not error.retriable() and error.code() >= 0:
                raise KafkaException(error)
        return found

    def to_end(self) -> Iterable[tuple[str, bytes, bytes | None]]:
        """Everything up to the end as of now."""
        open_ones = {(each.topic, each.partition) for each in self._partitions}
        while open_ones:
            for message in self._consumer.consume(1_000, 0.5):
                error = message.error()
                if error is None:
                    topic = (message.topic() or "").removeprefix(self._prefix)
                    yield topic, message.key() or b"", message.value()
                elif error.code() == PARTITION_EOF:
                    open_ones.discard((message.topic() or "", message.partition() or 0))
                elif not error.retriable() and error.code() >= 0:
                    raise KafkaException(error)

    def close(self) -> None:
        self._consumer.close()


@dataclass(slots=True)
class Seen:
    """What the log says of one run."""

    seq: int = 0
    has_ended: bool = False
    execution: int = 0
    kinds: list[str] = field(default_factory=list[str])
    steps: Counter[tuple[str, ...]] = field(default_factory=Counter[tuple[str, ...]])
    pending: set[str] = field(default_factory=set[str])
    licences: Counter[str] = field(default_factory=Counter[str])
    ambiguous: set[str] = field(default_factory=set[str])
    outcomes: Counter[int] = field(default_factory=Counter[int])
    signals: list[str] = field(default_factory=list[str])

    @property
    def is_settled(self) -> bool:
        """It has ended and said so, or it waits for a person."""
        return bool(self.pending) or (self.has_ended and self.outcomes[self.execution] > 0)


# Which fields tell two events of a kind apart; a kind that is not here may repeat. ToolStarted may: a claim
# that was refused is made again under the same attempt, and says so again.
_STEP: Final[Mapping[str, tuple[str, ...]]] = {
    "RunCreated": (),
    "TurnStarted": ("turn", "attempt"),
    "ModelResponded": ("turn",),
    "ToolCallRequested": ("call_id",),
    "ToolDispatched": ("call_id", "attempt"),
    "ToolCompleted": ("call_id",),
}


class Checker:
    """Takes records in as they come; ``faults`` are in words, the checker's name first."""

    def __init__(self) -> None:
        self.runs: defaultdict[str, Seen] = defaultdict(Seen)
        self.faults: list[str] = []
        self.dead_letters = 0
        self._events = Codec("Event")
        self._outcomes = Codec("Outcome")

    def take(self, topic: str, value: bytes | None) -> None:
        if value is None:
            return
        if topic == EVENTS:
            self._event(self._events.decode(value))
        elif topic == OUTCOMES:
            outcome = self._outcomes.decode(value)
            self.runs[outcome["run_id"]].outcomes[outcome["execution"]] += 1
        elif topic == DEAD_LETTERS:
            self.dead_letters += 1

    def _event(self, event: dict[str, Any]) -> None:
        run_id, (name, body) = event["run_id"], event["body"]
        kind = name.rpartition(".")[2]
        seen = self.runs[run_id]
        if event["seq"] != seen.seq + 1:
            self.faults.append(f"history: {run_id} has seq {event['seq']} after {seen.seq}")
        seen.seq = event["seq"]
        seen.kinds.append(kind)
        if seen.has_ended and kind not in AFTER_THE_END:
            self.faults.append(f"late: {run_id} has {kind} (seq {seen.seq}) after its end")
        if kind in _STEP:
            step = (kind, str(seen.execution), *(str(body[name]) for name in _STEP[kind]))
            seen.steps[step] += 1
            if seen.steps[step] > 1:
                self.faults.append(f"doubled: {run_id} has the step {' '.join(step)} twice")
        self._follow(seen, kind, body)

    @staticmethod
    def _follow(seen: Seen, kind: str, body: dict[str, Any]) -> None:
        if kind in TERMINAL:
            seen.has_ended = True
            seen.pending.clear()
        match kind:
            case "RunResumed":
                seen.has_ended, seen.execution = False, body["execution"]
            case "ApprovalRequested":
                seen.pending.add(body["call_id"])
            case "ToolCompleted":
                seen.pending.discard(body["call_id"])
            case "DecisionRecorded":
                seen.pending.discard(body["call_id"])
                seen.licences[body["call_id"]] += body["verdict"] == "did_not_run"
            case "ReconciliationAnswered":
                seen.licences[body["call_id"]] += body["answer"] == "did_not_happen"
            case "ToolAmbiguous":
                seen.ambiguous.add(body["call_id"])
            case "SignalReceived":
                seen.signals.append(body["message"])
            case _:
                pass

    def unsettled(self, run_ids: Iterable[str]) -> list[str]:
        return [run_id for run_id in run_ids if not self.runs[run_id].is_settled]


@dataclass(slots=True)
class Verdict:
    """What it comes to. ``doubted``: runs in which nobody could tell at once whether a call happened."""

    runs: int = 0
    waiting: int = 0
    doubted: int = 0
    lost: int = 0
    doubled: int = 0
    unlicensed: int = 0
    effects_twice: int = 0
    executions: int = 0
    other: int = 0
    faults: list[str] = field(default_factory=list[str])

    @property
    def is_clean(self) -> bool:
        return not self.faults


def judge(checker: Checker, truth: Path, asked: Iterable[str]) -> Verdict:
    """Compare what was asked for with what the log and the truth file say."""
    verdict = Verdict(faults=list(checker.faults))
    verdict.doubled = sum(fault.startswith("doubled:") for fault in checker.faults)
    verdict.other = len(checker.faults) - verdict.doubled
    wanted = set(asked)
    for run_id in sorted(wanted):
        seen = checker.runs[run_id]
        verdict.runs += 1
        verdict.waiting += bool(seen.pending)
        verdict.doubted += bool(seen.ambiguous)
        if not seen.is_settled:
            verdict.lost += 1
            last = ", ".join(seen.kinds[-3:]) or "nothing"
            verdict.faults.append(f"lost: {run_id} neither ended nor asks anybody; its last events: {last}")
        for execution, count in seen.outcomes.items():
            if count > 1:
                verdict.doubled += 1
                verdict.faults.append(f"doubled: {run_id}, execution {execution}, has {count} outcomes")
        if seen.has_ended and "RunCompleted" not in seen.kinds:
            verdict.other += 1
            verdict.faults.append(f"ending: {run_id} ended otherwise than completed: {seen.kinds[-1]}")
    for run_id in set(checker.runs) - wanted:
        verdict.other += 1
        verdict.faults.append(f"unseen: nobody asked for {run_id}")
    _judge_truth(checker, truth, verdict)
    return verdict


def _judge_truth(checker: Checker, truth: Path, verdict: Verdict) -> None:
    attempts: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    keys: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for line in truth.read_text(encoding="utf-8").splitlines():
        effect, run_id, call_id, attempt, key, _ = line.split()
        verdict.executions += 1
        if effect == NON_IDEMPOTENT:
            attempts[run_id, call_id].append(int(attempt))
        keys[run_id, call_id].add(key)
    for (run_id, call_id), executed in attempts.items():
        licences = checker.runs[run_id].licences[call_id]
        verdict.effects_twice += len(executed) > 1
        if len(executed) > 1 + licences or len(set(executed)) < len(executed):
            verdict.unlicensed += 1
            verdict.faults.append(
                f"unlicensed: {run_id} {call_id} was executed as attempts {executed}, {licences} licences"
            )
    for (run_id, call_id), found in keys.items():
        if len(found) > 1:
            verdict.other += 1
            verdict.faults.append(f"key: {run_id} {call_id} was executed with {len(found)} keys")
    for run_id, seen in checker.runs.items():
        if seen.licences or seen.ambiguous:
            continue  # somebody else may have told the result
        for kind, _, *rest in seen.steps:
            if kind == "ToolCompleted" and (run_id, rest[0]) not in keys:
                verdict.other += 1
                verdict.faults.append(f"invented: {run_id} {rest[0]} has a result and was never executed")
