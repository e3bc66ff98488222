"""What happens in the demo: a run is submitted, a worker is killed at the point, the run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rich.text import Text

from perdure.connectors.agent import Agent
from perdure.connectors.client import ENDINGS, Client
from perdure.connectors.topic_reader import TopicReader
from perdure.console.demo.child import REPOSITORY, pause
from perdure.console.demo.fleet import ROLES, Fleet
from perdure.console.demo.ledger import stored_messages
from perdure.console.demo.points import Point, Way
from perdure.console.demo.report import Teller
from perdure.console.demo.stage import ASK_TIMEOUT_S, INPUT, LOOK_S, Stage
from perdure.console.timeline import Timeline
from perdure.processors.clock import Clock
from perdure.schemas.codec import decode
from perdure.schemas.errors import Stop
from perdure.schemas.events import ApprovalRequested, Event
from perdure.schemas.outputs import Outcome
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.log import Record, TopicPartition
from perdure.topics.partitioner import partition_of
from perdure.topics.table import INPUTS, RUN_EVENTS, RUN_OUTCOMES, Namespace, Role

STORY_S_MAX: Final = 120.0
SETTLE_LOOK_S: Final = 0.1
COMMAND_TIMEOUT_S: Final = 60.0
PERSON: Final = "a person"


class StoryStuck(Stop):
    """The demo does not get on."""

    code = "demo_stuck"
    remedy = "Read the workers' logs."


class DecisionFailed(Stop):
    """The decision could not be made on the command line."""

    code = "demo_decision_failed"
    remedy = "Read what it said."


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tried. ``decides``: a person says what became of the call, where nothing else can."""

    point: Point
    agent: Agent
    is_live: bool
    decides: bool

    @property
    def way(self) -> Way:
        """The real model can not be held, so the process has to kill itself."""
        is_held = self.point.way in {Way.MODEL, Way.ARMED}
        return Way.ITSELF if self.is_live and is_held else self.point.way


@dataclass
class History:
    """The run's events as they come, read as anybody can read them."""

    reader: TopicReader
    run_id: str
    events: list[Event] = field(default_factory=list[Event])

    def poll(self, wait_s: float = LOOK_S) -> list[Event]:
        """What is new."""
        prefix = f"{self.run_id}/".encode()
        fresh = [
            decode(Event, record.value)
            for record in self.reader.more(wait_s)
            if record.value is not None and (record.key or b"").startswith(prefix)
        ]
        self.events += fresh
        return fresh

    @property
    def has_ended(self) -> bool:
        return any(isinstance(event.body, ENDINGS) for event in self.events)

    @property
    def question(self) -> ApprovalRequested | None:
        """What a person is asked, if that is the last word so far."""
        last = self.events[-1].body if self.events else None
        return last if isinstance(last, ApprovalRequested) else None


class Story:
    """One run, from its submit to its end."""

    def __init__(
        self,
        stage: Stage,
        fleet: Fleet,
        client: Client,
        log: KafkaLog,
        clock: Clock,
        tell: Teller,
        plan: Plan,
    ) -> None:
        self._stage = stage
        self._fleet = fleet
        self._client = client
        self._log = log
        self._clock = clock
        self._tell = tell
        self._plan = plan
        self._marker = stage.folder / "crashed"
        self._give_up_s = clock.boot_s() + STORY_S_MAX
        self._lines = Timeline()
        self._last_line: Text | None = None

    def play(self) -> History:
        """Everything; returns when the run has ended, or waits for a person and none is there."""
        plan, tell = self._plan, self._tell
        if plan.way in {Way.ITSELF, Way.ARMED}:
            assert plan.point.crash_point is not None
            self._fleet.arm(plan.point.role, plan.point.crash_point, self._marker)
        if plan.way is Way.ARMED:
            self._marker.touch()  # while it is there, the point stays quiet
        pids = [f"{role.value} (pid {self._fleet.start(role)})" for role in ROLES]
        tell.step("workers", ", ".join(pids))
        self._client.publish(plan.agent)
        run_id = self._client.submit(plan.agent, INPUT)
        tell.step("run", f"{run_id} of agent {plan.agent.name}: {INPUT!r}")
        with self._reader(RUN_EVENTS, run_id) as reader:
            history = History(reader, run_id)
            self._strike(history)
            self._show(history.poll(LOOK_S * 10), is_shown=False)
            if history.events:
                tell.step("log", "what it knows of the run, the last of it:")
                tell.event(self._last_line)
            pid = self._fleet.start(plan.point.role)
            tell.step("start", f"the {plan.point.role.value} again (pid {pid})")
            self._go_on(history)
            if history.question is not None and plan.decides:
                self._decide(history, history.question)
                self._go_on(history)
            self._settle(run_id)
            self._show(history.poll(), is_shown=True)
        return history

    def outcomes(self, run_id: str) -> list[Outcome]:
        """Those of the run that stand in the log."""
        with self._reader(RUN_OUTCOMES, run_id) as reader:
            return [
                decode(Outcome, record.value)
                for record in reader.to_end()
                if _is_of(record, run_id) and record.value is not None
            ]

    # ---- the crash -----------------------------------------------------------------------------------------

    def _strike(self, history: History) -> None:
        """Have the process killed at the point; returns when it is gone."""
        point, stage = self._plan.point, self._stage
        pid, role = self._fleet.pid(point.role), point.role.value
        match self._plan.way:
            case Way.SERVICE:
                self._wait(
                    history, stage.service_held.exists, f"no message has reached the service for {role}"
                )
                stored = json.loads(stage.service_held.read_text())["id"]
                self._tell.step(
                    "kill",
                    f"the service has stored {stored}, its answer is under way: kill -9 {role} (pid {pid})",
                )
                self._fleet.kill(point.role)
                stage.service_held.unlink()
            case Way.MODEL:
                self._wait(history, stage.model_held.exists, "the model was not asked for the message")
                self._tell.step("kill", f"the model has said half of its answer: kill -9 {role} (pid {pid})")
                self._fleet.kill(point.role)
                stage.model_held.unlink(missing_ok=True)
            case Way.ARMED:
                self._wait(history, stage.model_held.exists, "the model was not asked for the message")
                self._marker.unlink()
                stage.model_held.unlink()
                self._wait_for_itself(history)
            case Way.ITSELF:
                self._wait_for_itself(history)

    def _wait_for_itself(self, history: History) -> None:
        point = self._plan.point
        pid, role = self._fleet.pid(point.role), point.role.value
        self._wait(
            history, lambda: self._fleet.has_killed_itself(point.role), f"{role} did not reach {point.name}"
        )
        self._tell.step("kill", f"{role} (pid {pid}): kill -9 {point.moment}")

    def _wait(self, history: History, happened: Callable[[], bool], otherwise: str) -> None:
        while not happened():
            self._show(history.poll(), is_shown=False)
            self._fleet.tend()
            if self._clock.boot_s() > self._give_up_s or history.has_ended:
                raise StoryStuck(f"{otherwise} ({self._stage.folder}).")

    # ---- afterwards ----------------------------------------------------------------------------------------

    def _go_on(self, history: History) -> None:
        """Show what the run does until it has ended or a person is asked."""
        while not history.has_ended and history.question is None:
            self._show(history.poll(), is_shown=True)
            self._fleet.tend()
            if self._clock.boot_s() > self._give_up_s:
                raise StoryStuck(f"The run has not ended after {STORY_S_MAX:.0f} s ({self._stage.folder}).")

    def _settle(self, run_id: str) -> None:
        """Wait until the executors have acknowledged every request of the run: what is not done by then is
        not done any more, so the deliveries can be counted.
        """
        names = Namespace(self._stage.settings.namespace)
        for role in (Role.MODEL_CALLER, Role.TOOL_EXECUTOR):
            (topic,) = INPUTS[role]
            with self._reader(topic, run_id) as reader:
                last = max(
                    (record.offset for record in reader.to_end() if _is_of(record, run_id)), default=-1
                )
            at = TopicPartition(names.topic(topic), self._partition(run_id))
            while self._committed(names.group(role), at) <= last:
                self._fleet.tend()
                pause(SETTLE_LOOK_S)
                if self._clock.boot_s() > self._give_up_s:
                    raise StoryStuck(f"The {role.value} does not acknowledge {at} ({self._stage.folder}).")
        self._tell.step("settled", "each request to the model and to the tools is acknowledged")

    def _committed(self, group: str, at: TopicPartition) -> int:
        (committed,) = self._log.provision.offsets(group, [at], ASK_TIMEOUT_S)
        return -1 if committed.offset is None else committed.offset

    def _decide(self, history: History, asked: ApprovalRequested) -> None:
        """A person looks at the service's own list and says what is there."""
        stored = stored_messages(self._stage.database)
        verdict = ["ran", json.dumps({"message_id": stored[0]})] if stored else ["did-not-run"]
        found = " and ".join(stored) or "no message"
        self._tell.step(
            "person", f"finds {found} at the service and says so: perdure decide ... {verdict[0]}"
        )
        command = [
            sys.executable, "-m", "perdure.console.main", "decide", history.run_id, asked.call_id, *verdict,
            "--by", PERSON,
        ]  # fmt: skip
        answer = subprocess.run(
            command,
            env=dict(self._stage.environment),
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if answer.returncode != 0:
            raise DecisionFailed((answer.stdout + answer.stderr).strip())
        while history.question is not None:
            self._show(history.poll(), is_shown=True)
            if self._clock.boot_s() > self._give_up_s:
                raise StoryStuck("The decision was not answered.")

    def _show(self, events: list[Event], *, is_shown: bool) -> None:
        for event in events:
            line = self._lines.add(event)
            self._last_line = line or self._last_line
            if is_shown:
                self._tell.event(line)

    def _reader(self, topic: str, run_id: str) -> TopicReader:
        name = Namespace(self._stage.settings.namespace).topic(topic)
        return TopicReader(self._log, self._clock, name, [self._partition(run_id)], "perdure.demo")

    def _partition(self, run_id: str) -> int:
        """The same number in every topic that speaks of runs."""
        return partition_of(run_id, self._stage.settings.partitions)


def _is_of(record: Record, run_id: str) -> bool:
    return record.key == run_id.encode()
