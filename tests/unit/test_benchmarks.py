"""The benchmark's own claims: what the workload is, and that its figures are counted as it says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from benchmarks import history, legs, report, sizes, usage, workload
from benchmarks.driving import Measured
from benchmarks.legs import Trace
from benchmarks.usage import Usage
from perdure.connectors.agent import load_app
from perdure.processors.abort import AbortSignal
from perdure.processors.ports import ModelInvocation
from perdure.schemas.codec import encode
from perdure.schemas.keys import ResultKey
from perdure.schemas.requests import ModelRequest
from perdure.schemas.results import Completed, ModelReplied, Result
from perdure.schemas.values import Effect
from perdure.schemas.values import Usage as Tokens
from perdure.topics.log import Record
from perdure.topics.table import MODEL_REQUESTS, RUN_COMMANDS, RUN_OUTCOMES, RUN_RESULTS

RUN = "alone-0"


def ask(turn: int) -> ModelReplied:
    """The model's answer in a turn counted from 0, asked with a transcript as long as it is then."""
    call = ModelInvocation(
        definition=workload.agent_of(Effect.READ_ONLY).definition(),
        messages=(b"{}",) * (1 + 2 * turn),
        max_tokens=100,
        allow_tools=True,
        timeout_ms=1_000,
        invocation_id=f"i{turn}",
        digest=b"d",
    )
    return asyncio.run(
        workload.ScriptedModel().invoke(call, AbortSignal(), lambda _index, _kind, _text: None)
    )


def blocks(turn: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ask(turn).content)
    return found


@pytest.mark.parametrize(("turns", "steps"), [(1, 1), (2, 4), (5, 13), (40, 118)])
def test_a_run_has_as_many_steps_as_the_peers_workload(turns: int, steps: int) -> None:
    """T turns are T model calls and 2(T - 1) tool calls."""
    assert workload.steps(turns) == steps
    assert workload.steps(turns) == turns + workload.tool_calls(turns)


def test_every_turn_but_the_last_asks_for_two_tools() -> None:
    """The calls the model really asks for add up to the steps that are reported."""
    asked = [[each for each in blocks(turn) if each["type"] == "tool_use"] for turn in range(workload.TURNS)]
    assert [len(each) for each in asked] == [2, 2, 2, 2, 0]
    assert workload.TURNS + sum(map(len, asked)) == workload.steps() == 13


def test_no_call_id_is_used_twice_in_a_run() -> None:
    """A repeated id would be renamed by the machine, which costs more than the workload means to."""
    ids = [each["id"] for turn in range(workload.TURNS) for each in blocks(turn) if "id" in each]
    assert len(ids) == len(set(ids)) == workload.tool_calls()


def test_the_last_turn_answers_and_ends() -> None:
    """The answer is 1,024 bytes of text."""
    (block,) = blocks(workload.TURNS - 1)
    assert len(block["text"].encode()) == 1024
    assert ask(workload.TURNS - 1).stop_reason == "end_turn"
    assert ask(0).stop_reason == "tool_use"


def test_a_tool_result_has_500_bytes() -> None:
    """It does for the arguments that the model gives."""
    for turn in range(workload.TURNS):
        for each in blocks(turn):
            if each["type"] == "tool_use":
                assert len(workload.look_up(**each["input"]).encode()) == 500


@pytest.mark.parametrize("effect", list(Effect))
def test_the_worker_finds_the_agent_of_each_effect(effect: Effect) -> None:
    """The place that is handed to the worker leads to the very agent that was published."""
    (agent,) = load_app(workload.app_place(effect)).agents
    assert agent.digest == workload.agent_of(effect).digest
    assert agent.definition().tools[0].effect is effect


def trace() -> Trace:
    """Two turns: submit at 1000, read at 1100."""
    return Trace(
        submitted_ms=1000,
        read_ms=1100,
        command_ms=1002,
        outcome_ms=1095,
        model_requests={1: 1010, 2: 1070},
        model_results={1: 1030, 2: 1090},
        tool_requests={1: 1040},
        tool_results={1: 1060},
    )


def test_the_legs_of_a_run_add_up_to_its_time() -> None:
    """Nothing between submit and reading is left out or counted twice."""
    taken = trace().legs()
    assert sum(sum(each) for each in taken.values()) == 100
    assert taken[legs.MODEL] == [20, 20]
    assert taken[legs.NEXT] == [10]


def test_the_table_of_legs_gives_means_and_shares() -> None:
    """A leg's mean is over the times it was taken, its milliseconds over the runs."""
    rows = {row["leg"]: row for row in legs.table([trace(), trace()])}
    assert rows[legs.MODEL] == {
        "leg": legs.MODEL,
        "per_run": 2.0,
        "mean_ms": 20.0,
        "ms_per_run": 40.0,
        "share": 0.4,
    }
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1.0)


def record(key: bytes, value: bytes, at_ms: int) -> Record:
    return Record("t", 0, 0, key, value, (), at_ms)


def result(body: ModelReplied | Completed, call_id: str, at_ms: int) -> Record:
    whole = Result("r", RUN, 1, call_id, 1, "q", "w", body)
    return record(bytes(ResultKey(RUN, 1, call_id, 1)), encode(whole), at_ms)


def test_instants_come_from_the_records_of_the_run() -> None:
    """Of a turn's two tool results the later counts; records of other runs count for nothing."""
    found = Trace(0, 0)
    traces = {RUN: found}
    request = ModelRequest(RUN, 1, 1, "q", 0, "d", b"", b"", (), 10, 0, 0)
    legs.take(traces, RUN_COMMANDS, record(RUN.encode(), b"any", 1))
    legs.take(traces, MODEL_REQUESTS, record(RUN.encode(), encode(request), 2))
    legs.take(traces, RUN_RESULTS, result(ModelReplied("i", b"d", b"[]", "tool_use", Tokens()), "", 3))
    legs.take(traces, RUN_RESULTS, result(Completed(b'"x"'), "call_0_1", 5))
    legs.take(traces, RUN_RESULTS, result(Completed(b'"x"'), "call_0_0", 4))
    legs.take(traces, RUN_OUTCOMES, record(RUN.encode(), b"any", 6))
    legs.take(traces, RUN_COMMANDS, record(b"warm-0", b"any", 9))
    assert found == Trace(0, 0, 1, 6, {1: 2}, {1: 3}, {}, {1: 5})


@pytest.mark.parametrize(("part", "value"), [(0.5, 5.0), (0.95, 10.0), (0.01, 1.0), (1.0, 10.0)])
def test_percentiles_are_values_that_were_measured(part: float, value: float) -> None:
    """Nearest rank, so that p95 of ten runs is the slowest and not something in between."""
    assert report.percentile([float(each) for each in range(10, 0, -1)], part) == value


def test_processor_time_is_read_whatever_the_program_is_called() -> None:
    """A name with blanks and brackets does not shift the fields."""
    tail = " ".join(["S", *["0"] * 10, "250", "50", *["0"] * 30])
    assert usage.process_cpu_s(f"42 (a) b (c) {tail}") == pytest.approx(300 / usage.TICKS_PER_S)


def test_time_spent_idle_or_waiting_for_disks_is_not_busy() -> None:
    """Nor are guests counted twice, who are part of user and nice already."""
    stat = "cpu  100 10 20 999 999 3 4 5 77 88\ncpu0 1 2 3\n"
    assert usage.machine_cpu_s(stat) == pytest.approx(142 / usage.TICKS_PER_S)


def test_bytes_are_summed_over_brokers_and_partitions() -> None:
    """The tool's remarks before its JSON line are passed over; a topic's name may hold hyphens."""
    folder = {
        "partitions": [
            {"partition": "bench.run-events-0", "size": 100},
            {"partition": "bench.run-events-11", "size": 20},
            {"partition": "__consumer_offsets-1", "size": 5},
        ]
    }
    told = "Querying brokers\n" + json.dumps({"brokers": [{"logDirs": [folder]}, {"logDirs": [folder]}]})
    after = sizes.parsed(told)
    assert after == {"bench.run-events": 240, "__consumer_offsets": 10}
    assert sizes.per_run({"bench.run-events": 40}, {**after, "other.run-events": 9}, 10, "bench") == {
        "total": 21,
        "run-events": 20,
        "__consumer_offsets": 1,
    }
    assert sizes.per_run(None, after, 10, "bench") is None


def test_the_figures_are_plain_json_with_what_the_reader_needs() -> None:
    """Rates, latencies, processor time by process, bytes by topic and batching, each per run."""
    measured = Measured(seconds=2.0, latencies_s=[0.01, 0.02, 0.03, 0.04])
    used = Usage({"orchestrator": 0.4, "broker": 0.8}, 2.0)
    written = history.per_run(144, 48, 4)
    figures = json.loads(json.dumps(report.part(measured, used, {"total": 7}, written, 0.123)))
    assert figures["runs_per_s"] == 2.0
    assert figures["steps_per_s"] == 26.0
    assert (figures["p50_ms"], figures["p95_ms"]) == (20.0, 40.0)
    assert figures["cpu_ms_per_run"] == {
        "total": 300.0,
        "orchestrator": 100.0,
        "broker": 200.0,
        "others": 200.0,
    }
    assert figures["cores"] == {"orchestrator": 0.2, "broker": 0.4, "others": 0.4}
    assert figures["bytes_per_run"] == {"total": 7}
    assert figures["history"] == {"events_per_run": 36.0, "markers_per_run": 12.0, "events_per_marker": 3.0}


def test_what_it_was_measured_on_is_told() -> None:
    """Machine, versions and workload are in every answer."""
    told = json.loads(
        json.dumps(
            [report.machine(), report.versions("4.2.0"), report.described_workload(Effect.NON_IDEMPOTENT)]
        )
    )
    machine, versions, described = told
    assert machine["cores"] >= 1
    assert machine["memory_mb"] > 0
    assert machine["kernel"]
    assert {"perdure", "python", "kafka", "librdkafka"} <= versions.keys()
    assert described["steps"] == 13
    assert described["tool_effect"] == "non_idempotent"
    assert msgspec.json.decode(workload.reply(4)[0])[0]["type"] == "text"
