"""Where the time of a run alone goes: its legs from one record to the next, by the timestamps in the topics.

Commands, requests and results are stamped by the broker when it appends them (LogAppendTime), outcomes by
the orchestrator when it produces them. A leg ends at its record's stamp; so the commit of a transaction is
part of the leg that begins with a record of it, for nobody can read the record before. Stamps are whole
milliseconds: a single leg of a single run means little, the mean over many runs does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from perdure.connectors.topic_reader import TopicReader
from perdure.processors.clock import SystemClock
from perdure.schemas.codec import decode
from perdure.schemas.keys import ResultKey
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.results import Completed, ModelReplied, Result
from perdure.topics.log import Log, Record
from perdure.topics.table import (
    MODEL_REQUESTS,
    RUN_COMMANDS,
    RUN_OUTCOMES,
    RUN_RESULTS,
    TOOL_REQUESTS,
    Namespace,
)

READ: Final = (RUN_COMMANDS, MODEL_REQUESTS, TOOL_REQUESTS, RUN_RESULTS, RUN_OUTCOMES)

SUBMIT: Final = "submit -> command in the log"
BEGIN: Final = "command -> first model request"
MODEL: Final = "model request -> model result"
DISPATCH: Final = "model result -> tool requests"
TOOLS: Final = "tool requests -> last tool result"
NEXT: Final = "last tool result -> next model request"
END: Final = "last model result -> outcome"
READING: Final = "outcome -> read by the consumer"
LEGS: Final = (SUBMIT, BEGIN, MODEL, DISPATCH, TOOLS, NEXT, END, READING)


@dataclass(slots=True)
class Trace:
    """A run's instants, in milliseconds since the epoch; those of a turn by the turn's number, the last of
    several.
    """

    submitted_ms: int
    read_ms: int
    command_ms: int = 0
    outcome_ms: int = 0
    model_requests: dict[int, int] = field(default_factory=dict[int, int])
    model_results: dict[int, int] = field(default_factory=dict[int, int])
    tool_requests: dict[int, int] = field(default_factory=dict[int, int])
    tool_results: dict[int, int] = field(default_factory=dict[int, int])

    def legs(self) -> Mapping[str, Sequence[int]]:
        """The milliseconds of each leg, one number each time the run took it. Their sum is the run's time."""
        turns = sorted(self.model_requests)
        first, last = turns[0], turns[-1]
        before_last = turns[:-1]
        following = dict(pairwise(turns))
        return {
            SUBMIT: [self.command_ms - self.submitted_ms],
            BEGIN: [self.model_requests[first] - self.command_ms],
            MODEL: [self.model_results[turn] - self.model_requests[turn] for turn in turns],
            DISPATCH: [self.tool_requests[turn] - self.model_results[turn] for turn in before_last],
            TOOLS: [self.tool_results[turn] - self.tool_requests[turn] for turn in before_last],
            NEXT: [self.model_requests[following[turn]] - self.tool_results[turn] for turn in before_last],
            END: [self.outcome_ms - self.model_results[last]],
            READING: [self.read_ms - self.outcome_ms],
        }


def take(traces: Mapping[str, Trace], topic: str, record: Record) -> None:
    """Note the record's instant, if it is of one of these runs. ``topic``: the table's name."""
    if record.key is None or record.value is None:
        return
    at_ms = record.timestamp_ms
    if topic == RUN_RESULTS:
        key = ResultKey.parse(record.key)
        trace, body = traces.get(key.run_id), decode(Result, record.value).body
        if trace is not None and isinstance(body, ModelReplied):
            _latest(trace.model_results, key.turn, at_ms)
        elif trace is not None and isinstance(body, Completed):
            _latest(trace.tool_results, key.turn, at_ms)
        return
    trace = traces.get(record.key.decode())
    if trace is None:
        return
    if topic == RUN_COMMANDS:
        trace.command_ms = at_ms
    elif topic == RUN_OUTCOMES:
        trace.outcome_ms = at_ms
    elif topic == MODEL_REQUESTS:
        _latest(trace.model_requests, decode(ModelRequest, record.value).turn, at_ms)
    elif topic == TOOL_REQUESTS:
        _latest(trace.tool_requests, decode(ToolRequest, record.value).turn, at_ms)


def _latest(instants: dict[int, int], turn: int, at_ms: int) -> None:
    instants[turn] = max(at_ms, instants.get(turn, 0))


def read_traces(log: Log, namespace: Namespace, traces: Mapping[str, Trace]) -> None:
    """Fill them in from the topics, read to their end."""
    for name in READ:
        with TopicReader(log, SystemClock(), namespace.topic(name)) as reader:
            for record in reader.to_end():
                take(traces, name, record)


def table(traces: Iterable[Trace]) -> list[Mapping[str, Any]]:
    """Each leg's mean, how often a run takes it, and its part of the run's time."""
    every: dict[str, list[int]] = {leg: [] for leg in LEGS}
    runs = 0
    for trace in traces:
        runs += 1
        for leg, taken in trace.legs().items():
            every[leg] += taken
    whole = sum(sum(taken) for taken in every.values())
    return [
        {
            "leg": leg,
            "per_run": round(len(taken) / runs, 2),
            "mean_ms": round(sum(taken) / len(taken), 2) if taken else 0.0,
            "ms_per_run": round(sum(taken) / runs, 2),
            "share": round(sum(taken) / whole, 3) if whole else 0.0,
        }
        for leg, taken in every.items()
        if runs
    ]
