"""Drivers for runs that tell each other: each message is fed where it belongs, at once, as the host does."""

from __future__ import annotations

from typing import Any

from perdure.processors.machine.inputs import MachineSettings, Tell
from perdure.schemas.definition import AgentDefinition, ToolDefinition
from perdure.schemas.values import Budget, Effect
from tests.unit.machine.conftest import RUN_ID, Driver, agent

OPEN: dict[str, Any] = {"type": "object"}


def helper(schema: dict[str, Any] | None = None, **changes: Any) -> ToolDefinition:
    """An agent as a tool."""
    return ToolDefinition("helper", "a run", schema or OPEN, Effect.READ_ONLY, agent="a", **changes)


def parent_agent(*tools: ToolDefinition, **changes: Any) -> AgentDefinition:
    """An agent that calls itself, or what ``tools`` say, beside all that other agents call."""
    return agent(tools=(*agent().tools, *(tools or (helper(),))), **changes)


class Family:
    """A root and the children that come of it, under one clock."""

    def __init__(
        self, definition: AgentDefinition | None = None, settings: MachineSettings | None = None
    ) -> None:
        self._definition = definition or parent_agent()
        self._settings = settings
        self.drivers: dict[str, Any] = {}
        self.root = self._add(RUN_ID)

    def child(self, place: str = "1.0") -> Any:
        """The child of the call at this place (turn.index) of the root."""
        return self.drivers[f"{RUN_ID}~c.{place}"]

    def wait_until_ms(self, now_ms: int) -> None:
        """Let time pass for all of them."""
        for driver in self.drivers.values():
            driver.now_ms = max(driver.now_ms, now_ms)

    def submit(self, budget: Budget | None = None, **changes: Any) -> None:
        self.root.submit(budget=budget, **changes)

    def _add(self, run_id: str) -> Any:
        driver = self.drivers[run_id] = Driver(self._definition, self._settings)
        driver.run_id, driver.tell = run_id, self._tell
        return driver

    def _tell(self, output: Tell) -> None:
        run_id = output.input.run_id
        driver = self.drivers.get(run_id) or self._add(run_id)
        driver.now_ms = max(each.now_ms for each in self.drivers.values())
        driver.feed(output.input)
