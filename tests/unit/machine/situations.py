"""Representative runs: at least one in each state, for each way in which the state can be rested in.

Every run has a deadline far away, and lives under an agent with a tool of each effect class and a child.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import cache
from typing import Any, Final, TypeAlias

from perdure.processors.machine.inputs import MachineSettings
from perdure.schemas import results as rs
from perdure.schemas.commands import Cancel, Resume
from perdure.schemas.definition import ToolDefinition
from perdure.schemas.values import Answer, Effect, FailureKind
from tests.unit.machine.conftest import OBJECT, Driver, agent

DEADLINE_AFTER_MS: Final = 10_000_000_000
APPROVAL_TIMEOUT_MS: Final = 7_200_000
CALL: Final = "t10"
"""The call that a situation is about."""

Build: TypeAlias = Callable[[Driver], Any]


def fresh() -> Driver:
    """Nothing there yet."""
    tools = (
        *agent().tools,
        ToolDefinition("ask", "a run of another agent", OBJECT, Effect.READ_ONLY, agent="helper"),
    )
    settings = MachineSettings(approval_timeout_ms=APPROVAL_TIMEOUT_MS)
    return Driver(agent(tools=tools), settings)


def submitted(driver: Driver, **changes: Any) -> None:
    driver.submit(deadline_ms=driver.now_ms + DEADLINE_AFTER_MS, **changes)


def without_agent(driver: Driver) -> None:
    known, driver.definition = driver.definition, None
    submitted(driver)
    driver.definition = known


def without_slot(driver: Driver) -> None:
    driver.may_start = False
    submitted(driver)


def asking(driver: Driver) -> None:
    submitted(driver)


def waiting_to_ask(driver: Driver) -> None:
    asking(driver)
    driver.model_result(rs.ModelFailed("i", "overloaded", True, "busy"))


def asking_last(driver: Driver) -> None:
    submitted(driver, max_turns=1)


def called(tool: str) -> Build:
    def build(driver: Driver) -> None:
        asking(driver)
        driver.ask_tools(tool)

    return build


def claimed(tool: str) -> Build:
    def build(driver: Driver) -> None:
        called(tool)(driver)
        driver.claim(CALL)

    return build


def waiting_to_retry(driver: Driver) -> None:
    called("look")(driver)
    driver.tool_result(CALL, rs.Failed(FailureKind.EXCEPTION, "boom"))


def in_doubt(tool: str) -> Build:
    def build(driver: Driver) -> None:
        claimed(tool)(driver)
        driver.tool_result(CALL, rs.Suspect())

    return build


def waiting_to_reconcile(driver: Driver) -> None:
    in_doubt("send")(driver)
    driver.answered(CALL, rs.Reconciled(Answer.UNKNOWN))


def one_of_two(driver: Driver) -> None:
    asking(driver)
    driver.ask_tools("look", "put")
    driver.tool_result(CALL, rs.Completed(b'"seen"'))


def completed(driver: Driver) -> None:
    asking(driver)
    driver.say("done")


def failed(driver: Driver) -> None:
    asking(driver)
    driver.reply(stop_reason="refusal")


def failed_at_last(driver: Driver) -> None:
    asking_last(driver)
    driver.ask_tools("look")


def cancelled(before: Build) -> Build:
    def build(driver: Driver) -> None:
        before(driver)
        driver.command(Cancel("enough"))

    return build


def timed_out(driver: Driver) -> None:
    in_doubt("wire")(driver)
    pending = driver.run.pending_for(CALL)
    assert pending is not None
    assert pending.deadline_ms is not None
    driver.now_ms = pending.deadline_ms
    driver.timer()


def queued_again(before: Build) -> Build:
    def build(driver: Driver) -> None:
        cancelled(before)(driver)
        driver.may_start = False
        driver.command(Resume())

    return build


SITUATIONS: Final[Mapping[str, tuple[str, Build]]] = {
    "no run": ("none", lambda driver: None),
    "queued, agent unknown": ("queued", without_agent),
    "queued, no slot": ("queued", without_slot),
    "queued, not before an instant": (
        "queued",
        lambda driver: submitted(driver, not_before_ms=driver.now_ms + 60_000),
    ),
    "queued, resumed with a claimed call": ("queued", queued_again(claimed("wire"))),
    "queued, resumed with a child": ("queued", queued_again(called("ask"))),
    "running, model asked": ("running", asking),
    "running, waits to ask again": ("running", waiting_to_ask),
    "running, last turn": ("running", asking_last),
    "awaiting_tool, read_only call": ("awaiting_tool", called("look")),
    "awaiting_tool, idempotent_write call": ("awaiting_tool", called("put")),
    "awaiting_tool, unclaimed non_idempotent call": ("awaiting_tool", called("wire")),
    "awaiting_tool, claimed non_idempotent call": ("awaiting_tool", claimed("wire")),
    "awaiting_tool, waits for the next attempt": ("awaiting_tool", waiting_to_retry),
    "awaiting_tool, one of two calls answered": ("awaiting_tool", one_of_two),
    "awaiting_tool, reconciling": ("awaiting_tool", in_doubt("send")),
    "awaiting_tool, waits to reconcile": ("awaiting_tool", waiting_to_reconcile),
    "awaiting_tool, child": ("awaiting_tool", called("ask")),
    "awaiting_approval, approval": ("awaiting_approval", called("buy")),
    "awaiting_approval, doubt": ("awaiting_approval", in_doubt("wire")),
    "completed": ("completed", completed),
    "failed": ("failed", failed),
    "failed, no turns left": ("failed", failed_at_last),
    "cancelled, model asked": ("cancelled", cancelled(asking)),
    "cancelled, unclaimed non_idempotent call": ("cancelled", cancelled(called("wire"))),
    "cancelled, claimed non_idempotent call": ("cancelled", cancelled(claimed("wire"))),
    "cancelled, child": ("cancelled", cancelled(called("ask"))),
    "timed_out": ("timed_out", timed_out),
}
"""Name -> state, and what leads there."""


@cache
def _built(name: str) -> Driver:
    state, build = SITUATIONS[name]
    driver = fresh()
    build(driver)
    driver.may_start = True
    is_state = "none" if driver.run_or_none is None else str(driver.run.state)
    assert is_state == state, f"{name} is {is_state}"
    return driver


def stage(name: str) -> Driver:
    """A driver of its own whose run is in this situation, with a slot free for what comes."""
    driver = copy(_built(name))
    driver.events, driver.messages = list(driver.events), list(driver.messages)
    return driver
