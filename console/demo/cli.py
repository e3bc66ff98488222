"""The demo's command line: ``python -m perdure.console.demo``, or ``make demo``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from perdure.connectors.agent import load_app
from perdure.connectors.client import Client
from perdure.console.demo import EXIT_INTERRUPTED
from perdure.console.demo.child import REPOSITORY
from perdure.console.demo.fleet import APP, Fleet
from perdure.console.demo.ledger import Counted, count, was_reconciled
from perdure.console.demo.points import BY_NAME, DEFAULT, Point, Way
from perdure.console.demo.report import Teller, Verdict
from perdure.console.demo.stage import FOLDER, Stage, stage, terminate_on_sigterm
from perdure.console.demo.story import History, Plan, Story
from perdure.processors.clock import SystemClock
from perdure.schemas.errors import PerdureError, Reject
from perdure.schemas.outputs import Outcome
from perdure.schemas.values import RunState
from perdure.topics.kafka_log import KafkaLog

KEY_VARIABLE: Final = "ANTHROPIC_API_KEY"
EXIT_ERROR: Final = 2
WIDTH_WITHOUT_TERMINAL: Final = 120
AGENT: Final = "support"
AGENT_WITHOUT_RECONCILER: Final = "support-asking-people"
AGENT_NAIVE: Final = "support-naive"


class KeyMissing(Reject):
    """--live asks the real model, which needs a key."""

    code = "demo_key_missing"
    remedy = f"Set {KEY_VARIABLE}, or leave --live out."


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="perdure.console.demo",
        description="A run on real Kafka survives a kill -9 in the worst place. The last line is JSON; the "
        "exit code is 0 only if the message was delivered once (or not more, and a person is asked).",
        epilog="points: " + "; ".join(f"{point.name} ({point.role.value})" for point in BY_NAME.values()),
    )
    parser.add_argument(
        "--crash", choices=list(BY_NAME), default=DEFAULT, metavar="POINT", help="where to kill"
    )
    agent = parser.add_mutually_exclusive_group()
    agent.add_argument("--naive", action="store_true", help="retry blindly: two deliveries, and exit code 1")
    agent.add_argument(
        "--no-reconcile", action="store_true", help="without the reconciliation tool: a person decides"
    )
    parser.add_argument("--live", action="store_true", help="ask the real model, with ANTHROPIC_API_KEY")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where its files go (default: %(default)s)"
    )
    options = parser.parse_args(given)
    if options.naive and options.crash != DEFAULT:
        parser.error(f"--naive is for {DEFAULT}, where it can be seen")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """The exit code: 0 as promised, 1 not so, 2 could not be tried, 130 interrupted."""
    options = arguments(given)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL)
    tell = Teller(console, SystemClock())
    try:
        if options.live and not os.environ.get(KEY_VARIABLE):
            raise KeyMissing
        verdict = run(options, tell)
    except PerdureError as error:
        print(f"demo: {error.args[0]} [{error.code}]\n{error.remedy}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("demo: interrupted, everything it started has ended", file=sys.stderr)
        return EXIT_INTERRUPTED
    for fault in verdict.faults:
        tell.step("trouble", fault)
    print(verdict.line, flush=True)
    return verdict.exit_code


def run(options: argparse.Namespace, tell: Teller) -> Verdict:
    point = BY_NAME[options.crash]
    name = AGENT_NAIVE if options.naive else AGENT_WITHOUT_RECONCILER if options.no_reconcile else AGENT
    (agent,) = (each for each in load_app(APP, folder=REPOSITORY).agents if each.name == name)
    plan = Plan(point, agent, is_live=options.live, decides=options.no_reconcile)
    clock = SystemClock()
    terminate_on_sigterm()
    with stage(
        options.folder,
        tell,
        is_live=options.live,
        holds_service=plan.way is Way.SERVICE,
        holds_model=plan.way in {Way.MODEL, Way.ARMED},
    ) as set_up:
        log = KafkaLog(set_up.settings.bootstrap, set_up.settings.kafka)
        fleet = Fleet(set_up.environment, set_up.folder, lambda text: tell.step("trouble", text))
        try:
            with Client(set_up.settings, log=log) as client:
                story = Story(set_up, fleet, client, log, clock, tell, plan)
                history = story.play()
                fleet.end()  # whatever could still be sent has been sent when the counting begins
                tell.history(history.run_id, history.events)
                verdict = judged(set_up, story, history, fleet, plan, tell, is_naive=options.naive)
        finally:
            fleet.end(at_once=True)
    return verdict


def judged(
    set_up: Stage, story: Story, history: History, fleet: Fleet, plan: Plan, tell: Teller, *, is_naive: bool
) -> Verdict:
    counted = count(set_up.database, set_up.model_log)
    outcomes = story.outcomes(history.run_id)
    status = state_of(history, outcomes)
    is_reconciled = was_reconciled(history.events)
    expected = plan.point.is_reconciled and not is_naive and not plan.decides
    faults = [
        *faults_of_status(status, counted, len(outcomes)),
        *([] if plan.is_live else faults_of_script(plan.point, counted)),
    ]
    if fleet.kills != 1:
        faults.append(f"{fleet.kills} processes were killed, not 1")
    if is_reconciled is not expected:
        faults.append(f"the result did {'' if is_reconciled else 'not '}come from the reconciliation tool")
    return Verdict(status, counted, fleet.kills, is_reconciled, tell.seconds, plan.point.name, tuple(faults))


def state_of(history: History, outcomes: list[Outcome]) -> str:
    """What the log says to everybody: the outcome, else that a person is asked."""
    if outcomes:
        return outcomes[-1].state
    return RunState.AWAITING_APPROVAL if history.question is not None else "unknown"


def faults_of_status(status: str, counted: Counted, outcomes: int) -> list[str]:
    """Delivered once and completed, or not more than once and a person is asked."""
    is_waiting = status == RunState.AWAITING_APPROVAL
    faults: list[str] = []
    if status not in {RunState.COMPLETED, RunState.AWAITING_APPROVAL}:
        faults.append(f"the run is {status}")
    if counted.deliveries > 1 or (counted.deliveries == 0 and not is_waiting):
        faults.append(f"the message was delivered {counted.deliveries} times")
    if outcomes != (0 if is_waiting else 1):
        faults.append(f"{outcomes} outcomes stand in the log")
    return faults


def faults_of_script(point: Point, counted: Counted) -> list[str]:
    """Only unfinished work was done again: what the services counted is what the script says."""
    faults: list[str] = []
    if counted.lookups != 1:
        faults.append(f"the customer was looked up {counted.lookups} times, not once")
    if counted.model_calls != point.model_calls:
        faults.append(f"the model was called {counted.model_calls} times, not {point.model_calls}")
    return faults
