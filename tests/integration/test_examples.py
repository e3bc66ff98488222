"""The examples are executed as a reader would execute them: by their own commands, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker_stage import WorkerStage, until

pytestmark = pytest.mark.timeout(240)

COUNTING: list[dict[str, Any]] = [
    {"content": [{"type": "tool_use", "name": "count_words", "input": {"text": "to be or not to be"}}]},
    {"content": [{"type": "text", "text": "Six words, four of them different."}]},
]
PAYING: list[dict[str, Any]] = [
    {"content": [{"type": "tool_use", "name": "pay", "input": {"to": "Ada", "euros": 12}}]},
    {"content": [{"type": "text", "text": "Paid."}]},
]
EDITING: list[dict[str, Any]] = [
    {"content": [{"type": "tool_use", "name": "researcher", "input": {"input": "When was it built?"}}]},
    {"content": [{"type": "text", "text": "In 1896."}]},
    {"content": [{"type": "text", "text": "1896."}]},
]
"""Step N answers a transcript with N messages of the model, whoever asks: the researcher's first call goes
wrong, since it has no such tool.
"""


@pytest.fixture
def stage(
    kafka: str, namespace: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[WorkerStage]:
    script: list[dict[str, Any]] = request.param
    stage = WorkerStage(kafka, namespace, tmp_path, script)
    try:
        stage.answered("topics", "apply")
        yield stage
    finally:
        stage.close()


@pytest.mark.parametrize("stage", [COUNTING], indirect=True)
def test_the_first_agent_answers_and_a_downstream_consumer_sees_its_outcome(stage: WorkerStage) -> None:
    """The example prints the answer, the command line tells its story, the consumer reads its outcome."""
    stage.start("examples.first_agent:agent")
    done = stage.python("examples/first_agent.py", "How many words has: to be or not to be?")
    assert done.returncode == 0, done.stderr + stage.log()
    assert done.stdout == "Six words, four of them different.\n"

    (row,) = (json.loads(line) for line in stage.answered("runs", "--json").splitlines())
    assert (row["state"], row["agent"], row["turn"]) == ("completed", "word-counter", 2)
    told = stage.answered("show", row["run_id"])
    assert 'count_words {"text":"to be or not to be"} [read_only]' in told
    assert 'count_words: {"different":4,"words":6}' in told
    kinds = [
        json.loads(line)["body"]["type"]
        for line in stage.answered("show", row["run_id"], "--json").splitlines()
    ]
    assert (kinds[0], kinds[-1]) == ("RunCreated", "RunCompleted")

    consumed = stage.python("examples/outcomes_consumer.py", "1")
    assert consumed.returncode == 0, consumed.stderr
    assert json.loads(consumed.stdout) == {
        "run_id": row["run_id"],
        "execution": 0,
        "state": "completed",
        "code": None,
        "output": "Six words, four of them different.",
    }
    assert stage.stop() == 0, stage.log()
    assert json.loads(stage.answered("doctor", "--verify", "--json"))["ok"]


@pytest.mark.parametrize("stage", [PAYING], indirect=True)
def test_a_doubtful_payment_waits_for_a_person_and_is_decided_once(stage: WorkerStage) -> None:
    """The run parks with what is known; the decision goes on with its result; a second one is refused."""
    stage.start("examples.doubtful_payment:agent")
    run_id = stage.answered("submit", "cashier", "Pay 12 euros to Ada.", "--run-id", "pay-1").strip()
    assert run_id == "pay-1"
    until(lambda: bool(stage.answered("approvals", "--json").strip()), 60, "the call waits for a person")
    shown = stage.answered("approvals", run_id)
    assert "perdure decide pay-1" in shown
    (asked,) = (json.loads(line) for line in stage.answered("approvals", "--json").splitlines())
    refused = stage.perdure("approve", run_id, "--json")
    assert refused.returncode == 2
    assert "verdict_not_allowed" in refused.stdout

    done = stage.python("examples/doubtful_payment.py", run_id)
    assert done.returncode == 0, done.stderr + stage.log()
    assert done.stdout.splitlines()[-1] == "Paid."
    again = stage.perdure("decide", run_id, asked["call_id"], "did-not-run", "--json")
    assert again.returncode == 2
    assert json.loads(again.stdout)["error"]["code"] == "nothing_pending"
    story = stage.answered("show", run_id)
    assert "pay, attempt 1, may have run" in story
    assert "ran by the accounts department" in story
    assert stage.perdure("submit", "cashier", "something else", "--run-id", run_id).returncode == 0
    assert stage.perdure("cancel", run_id, "--json").returncode == 2
    assert stage.stop() == 0, stage.log()


@pytest.mark.parametrize("stage", [EDITING], indirect=True)
def test_an_agent_asks_another_and_its_ended_run_is_continued(stage: WorkerStage) -> None:
    """Parent and child are one family; the completed parent goes on as a new run that knows all of it."""
    stage.start("examples.editor:app")
    done = stage.perdure("submit", "editor", "When was the harbour built?", "--run-id", "e-1", "--follow")
    assert done.returncode == 0, done.stdout + done.stderr + stage.log()
    rows = [json.loads(line) for line in stage.answered("runs", "--json").splitlines()]
    assert {row["run_id"]: row["parent"] for row in rows} == {"e-1": None, "e-1~c.1.0": "e-1"}
    assert {row["state"] for row in rows} == {"completed"}
    told = stage.answered("show", "e-1")
    assert "researcher: e-1~c.1.0" in told
    assert "researcher: In 1896." in told

    stage.answered("continue", "e-1", "--message", "Only the year.", "--id", "2", "--follow")
    events = [json.loads(line) for line in stage.answered("show", "e-1~2", "--json").splitlines()]
    assert events[-1]["body"]["output"] == "1896."
    assert events[0]["body"]["fork"]["turn"] == 2
    assert stage.stop() == 0, stage.log()
    assert json.loads(stage.answered("doctor", "--verify", "--json"))["ok"]
