"""Runs fed by an outside platform survive kill -9 of every role; an outside consumer counts.

PERDURE has no say in the counting: submits, outcomes and executions are written and read by others' code.
The number of runs is RUNS (60 by default, 1,000 with ``make acceptance RUNS=1000``).
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from chaos.outside import Codec, feed, newest, outcomes, read_all
from perdure.connectors.local_kafka import kafka_tool
from tests.acceptance.fleet import ROLES, Fleet, wait_until

RUNS = int(os.environ.get("RUNS", "60"))
KILL_ROUNDS = 3
BUDGET_S = 120 + RUNS * 0.5

pytestmark = pytest.mark.timeout(3 * BUDGET_S)


@pytest.fixture
def fleet(kafka: str, namespace: str, tmp_path: Path) -> Iterator[Fleet]:
    """Topics are made, no worker runs yet."""
    fleet = Fleet(kafka, namespace, tmp_path)
    try:
        made = fleet.perdure("topics", "apply")
        assert made.returncode == 0, made.stderr
        yield fleet
    finally:
        fleet.close()


def run_ids(count: int) -> list[str]:
    return [f"run-{number:05d}" for number in range(count)]


def finished(fleet: Fleet) -> int:
    return len(outcomes(fleet.bootstrap, fleet.topic("run-outcomes")))


def parked(fleet: Fleet) -> int:
    """Runs that stand in awaiting_approval."""
    codec = Codec("Status")
    rows = newest(fleet.bootstrap, fleet.topic("run-status")).values()
    return sum(codec.decode(value)["state"] == "awaiting_approval" for value in rows)


def _reached(progress: Callable[[], int], least: float) -> bool:
    return progress() >= least


def kill_each_role_while(fleet: Fleet, progress: Callable[[], int], total: int) -> None:
    """Kill -9 one process of each role, KILL_ROUNDS times, spread over the work."""
    for round_number in range(KILL_ROUNDS):
        for number, role in enumerate(ROLES):
            share = (round_number * len(ROLES) + number + 0.5) / (KILL_ROUNDS * len(ROLES) + 1)
            least = share * total
            wait_until(partial(_reached, progress, least), BUDGET_S, f"work before the {role} dies")
            fleet.kill(role)
            fleet.start(role)


def test_each_run_has_one_outcome_and_no_send_is_repeated_when_the_doubt_can_be_reconciled(
    fleet: Fleet,
) -> None:
    """With a reconciliation tool that answers: exactly one outcome per run, each message sent once."""
    fleet.start_all()
    feed(fleet.bootstrap, fleet.topic("run-commands"), "mailer", run_ids(RUNS))
    kill_each_role_while(fleet, lambda: len(fleet.executions()), RUNS)
    wait_until(lambda: finished(fleet) >= RUNS, BUDGET_S, f"{RUNS} outcomes", interval_s=1.0)
    found = outcomes(fleet.bootstrap, fleet.topic("run-outcomes"))
    assert found == Counter({(run_id, 0): 1 for run_id in run_ids(RUNS)})
    executed = Counter(fleet.executions())
    assert len(executed) == RUNS
    assert set(executed.values()) == {1}
    assert fleet.kills == KILL_ROUNDS * len(ROLES)
    print(json.dumps({"runs": RUNS, "outcomes": len(found), "kills": fleet.kills, "executed_twice": 0}))  # noqa: T201


def test_outcomes_and_parked_runs_add_up_when_nothing_can_tell(fleet: Fleet) -> None:
    """Without a reconciliation tool: outcomes + runs in awaiting_approval are all runs, nothing sent
    twice.
    """
    fleet.start_all()
    feed(fleet.bootstrap, fleet.topic("run-commands"), "mailer-blind", run_ids(RUNS))
    kill_each_role_while(fleet, lambda: finished(fleet) + parked(fleet), RUNS)
    wait_until(
        lambda: finished(fleet) + parked(fleet) >= RUNS, BUDGET_S, "every run ends or asks", interval_s=1.0
    )
    found = outcomes(fleet.bootstrap, fleet.topic("run-outcomes"))
    asking = parked(fleet)
    assert len(found) + asking == RUNS
    assert set(found.values()) <= {1}
    executed = Counter(fleet.executions())
    assert set(executed.values()) <= {1}
    print(json.dumps({"runs": RUNS, "outcomes": len(found), "awaiting_approval": asking}))  # noqa: T201


def test_runs_go_on_after_everything_is_killed_and_every_store_is_deleted(fleet: Fleet) -> None:
    """Kill all, delete every RocksDB folder, start again: all runs end, and rows equal the fold of events."""
    fleet.start_all()
    feed(fleet.bootstrap, fleet.topic("run-commands"), "mailer", run_ids(RUNS))
    wait_until(lambda: len(fleet.executions()) >= RUNS // 3, BUDGET_S, "a third of the work")
    for role in ROLES:
        fleet.kill(role)
    shutil.rmtree(fleet.state)
    fleet.start_all()
    wait_until(lambda: finished(fleet) >= RUNS, BUDGET_S, f"{RUNS} outcomes", interval_s=1.0)
    assert set(Counter(fleet.executions()).values()) == {1}
    fleet.stop_all()
    verified = fleet.perdure("doctor", "--verify", "--json", timeout_s=120)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def reset_offsets(fleet: Fleet) -> None:
    for role, topics in (
        ("orchestrator", ("run-commands", "run-results")),
        ("model-caller", ("model-requests",)),
        ("tool-executor", ("tool-requests",)),
    ):
        arguments = ["--bootstrap-server", fleet.bootstrap, "--group", f"{fleet.namespace}.{role}"]
        for topic in topics:
            arguments += ["--topic", fleet.topic(topic)]
        kafka_tool(
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            [*arguments, "--reset-offsets", "--to-earliest", "--execute"],
        )


def test_reading_everything_again_changes_nothing(fleet: Fleet) -> None:
    """Offsets reset to earliest by Kafka's own tool: no state changes twice, no outcome doubles, nothing
    runs.
    """
    count = min(RUNS, 200)
    fleet.start_all()
    feed(fleet.bootstrap, fleet.topic("run-commands"), "mailer", run_ids(count))
    wait_until(lambda: finished(fleet) >= count, BUDGET_S, f"{count} outcomes", interval_s=1.0)
    fleet.stop_all()
    before = newest(fleet.bootstrap, fleet.topic("run-status"))
    executed = fleet.executions()
    reset_offsets(fleet)
    fleet.start_all()
    last = f"run-{count:05d}"
    feed(fleet.bootstrap, fleet.topic("run-commands"), "mailer", [last])  # read behind all the old ones
    wait_until(lambda: finished(fleet) >= count + 1, BUDGET_S, "the run behind them", interval_s=1.0)
    fleet.stop_all()
    found = outcomes(fleet.bootstrap, fleet.topic("run-outcomes"))
    assert set(found.values()) == {1}
    assert set(Counter(fleet.executions()).values()) == {1}
    assert fleet.executions()[: len(executed)] == executed
    assert len(fleet.executions()) == len(executed) + 1
    codec = Codec("Status")
    after = newest(fleet.bootstrap, fleet.topic("run-status"))
    for key, value in before.items():
        was, now = codec.decode(value), codec.decode(after[key])
        assert (now["state"], now["turn"], now["execution"]) == (was["state"], was["turn"], was["execution"])


STATE_CHANGING = {
    "RunCreated",
    "TurnStarted",
    "ModelResponded",
    "ToolCallRequested",
    "ToolCompleted",
    "RunCompleted",
}


def test_no_history_holds_a_step_twice(fleet: Fleet) -> None:
    """Read from outside: each run's events are gapless, and each step of it stands there once."""
    count = min(RUNS, 40)
    fleet.start_all()
    feed(fleet.bootstrap, fleet.topic("run-commands"), "mailer", run_ids(count))
    wait_until(lambda: len(fleet.executions()) >= count // 2, BUDGET_S, "half of the work")
    fleet.kill("orchestrator")
    fleet.start("orchestrator")
    wait_until(lambda: finished(fleet) >= count, BUDGET_S, f"{count} outcomes", interval_s=1.0)
    codec = Codec("Event")
    seqs: dict[str, list[int]] = {}
    steps: Counter[tuple[str, ...]] = Counter()
    for _, value, _, _ in read_all(fleet.bootstrap, fleet.topic("run-events")):
        assert value is not None
        event = codec.decode(value)
        kind, body = event["body"]
        seqs.setdefault(event["run_id"], []).append(event["seq"])
        if kind.rpartition(".")[2] in STATE_CHANGING:
            part = str(body.get("call_id") or ""), str(body.get("turn") or ""), str(body.get("attempt") or "")
            steps[event["run_id"], kind, *part] += 1
    assert len(seqs) == count
    for run_id, numbers in seqs.items():
        assert numbers == list(range(1, len(numbers) + 1)), run_id
    assert set(steps.values()) == {1}
