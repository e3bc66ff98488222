"""One run as a test sees it: what the log says of it, and what may be asked of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from perdure.connectors.client import Client
from perdure.schemas.commands import Cancel, CommandBody, Decide, Resume, Signal
from perdure.schemas.events import CommandRejected, Event
from perdure.schemas.outputs import Approval, Outcome, Status
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.values import Budget, RunState, Usage, Verdict
from perdure.testing.history import History
from perdure.topics.table import MODEL_REQUESTS, RUN_STATUS, TOOL_REQUESTS

B = TypeVar("B")
Send: TypeAlias = Callable[[str, CommandBody, str | None], str]


class TestRun:
    """Made by :meth:`~perdure.testing.bed.TestBed.submit`.

    Looking is free. What asks returns the command's id; it is durable at once and takes effect when the bed
    goes on.
    """

    __test__ = False

    def __init__(self, run_id: str, history: History, client: Client, send: Send) -> None:
        self.run_id = run_id
        self._history = history
        self._client = client
        self._send = send

    def __repr__(self) -> str:
        return f"<run {self.run_id} {self.kinds}>"

    # ---- looking -------------------------------------------------------------------------------------------

    @property
    def state(self) -> RunState | None:
        """None: its submit was not answered yet, or refused."""
        run = self._history.runs.get(self.run_id)
        return None if run is None else run.state

    @property
    def events(self) -> list[Event]:
        return list(self._history.events[self.run_id])

    @property
    def kinds(self) -> list[str]:
        """The names of its events, in order."""
        return [type(event.body).__name__ for event in self.events]

    def bodies(self, kind: type[B]) -> list[B]:
        """The bodies of its events of one kind, in order."""
        return [event.body for event in self.events if isinstance(event.body, kind)]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The transcript, decoded."""
        return [json.loads(message) for message in self._history.messages[self.run_id]]

    @property
    def results(self) -> list[dict[str, Any]]:
        """Every tool_result of the transcript, in order."""
        found: list[dict[str, Any]] = []
        for message in self.messages:
            content: str | list[dict[str, Any]] = message["content"]
            if not isinstance(content, str):
                found += [block for block in content if block["type"] == "tool_result"]
        return found

    @property
    def waiting_for(self) -> str | None:
        """What run-status says that the run can not go on without; None: nothing."""
        told = [each for each in self._history.all_of(RUN_STATUS, Status) if each.run_id == self.run_id]
        return max(told, key=lambda each: each.seq).waiting_for if told else None

    @property
    def outcomes(self) -> list[Outcome]:
        """One per execution that has ended."""
        return list(self._history.outcomes[self.run_id])

    @property
    def outcome(self) -> Outcome | None:
        """How its current execution ended; None: it has not."""
        run = self._history.runs.get(self.run_id)
        found = [each for each in self.outcomes if run is not None and each.execution == run.execution]
        return found[-1] if found else None

    @property
    def output(self) -> Any:
        """The output, decoded; None: there is none."""
        outcome = self.outcome
        return None if outcome is None or outcome.output is None else json.loads(outcome.output)

    @property
    def code(self) -> str | None:
        """Why its current execution failed, was cancelled or timed out."""
        return None if self.outcome is None else self.outcome.code

    @property
    def usage(self) -> Usage:
        run = self._history.runs.get(self.run_id)
        return Usage() if run is None else run.usage

    @property
    def pending(self) -> list[Approval]:
        """What people are asked now, oldest first."""
        return self._client.approvals(self.run_id)

    @property
    def rejections(self) -> list[str]:
        """The stable reasons of its commands that changed nothing, in order."""
        return [body.reason for body in self.bodies(CommandRejected)]

    @property
    def model_requests(self) -> list[ModelRequest]:
        found = self._history.all_of(MODEL_REQUESTS, ModelRequest)
        return [each for each in found if each.run_id == self.run_id]

    @property
    def tool_requests(self) -> list[ToolRequest]:
        found = self._history.all_of(TOOL_REQUESTS, ToolRequest)
        return [each for each in found if each.run_id == self.run_id]

    # ---- asking --------------------------------------------------------------------------------------------

    def send(self, body: CommandBody, command_id: str | None = None) -> str:
        """Any command, as any client may write it."""
        return self._send(self.run_id, body, command_id)

    def cancel(self, reason: str = "cancelled by the test") -> str:
        return self.send(Cancel(reason))

    def resume(
        self, message: str | None = None, *, extra_turns: int | None = None, budget: Budget | None = None
    ) -> str:
        return self.send(Resume(message, extra_turns, budget))

    def fork(self, turn: int | None = None, message: str | None = None, **more: Any) -> TestRun:
        """A new run that goes on where this one stood after ``turn``; the rest is as for ``Client.fork``."""
        fork_id = self._client.fork(self.run_id, turn=turn, message=message, **more)
        return TestRun(fork_id, self._history, self._client, self._send)

    def signal(self, message: str) -> str:
        return self.send(Signal(message))

    def decide(
        self,
        call_id: str | None,
        verdict: Verdict | str,
        *,
        result: Any = None,
        arguments: Any = None,
        message: str | None = None,
        token: str | None = None,
        by: str = "somebody",
        command_id: str | None = None,
    ) -> str:
        """Decide about a call. ``call_id`` None: the only one that is asked about. ``token``: that of the
        question as it stands, unless another is given; empty if nothing is asked.
        """
        asked = self.pending
        if call_id is None:
            assert len(asked) == 1, f"there are {len(asked)} questions"
            call_id = asked[0].call_id
        shown = next((each.token for each in asked if each.call_id == call_id), "")
        body = Decide(
            call_id=call_id,
            verdict=Verdict(verdict),
            token=shown if token is None else token,
            decided_by=by,
            result=None if result is None else json.dumps(result).encode(),
            arguments=None if arguments is None else json.dumps(arguments).encode(),
            message=message,
        )
        return self.send(body, command_id)
