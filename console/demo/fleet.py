"""The workers: one operating system process a role, started by perdure's own command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from perdure.console.demo.child import Child, pause
from perdure.processors.crash_points import CRASH_ENV, CRASH_MARKER_ENV, CrashPoint
from perdure.schemas.errors import Stop
from perdure.topics.table import Role

ROLES: Final = (Role.ORCHESTRATOR, Role.MODEL_CALLER, Role.TOOL_EXECUTOR)
APP: Final = "examples.support_agent:app"
RESTARTS_MAX: Final = 3
SECOND_REQUEST_S: Final = 0.2
LEAVE_TIMEOUT_S: Final = 2.0
DRAIN_TIMEOUT_S: Final = 8.0


class WorkerFailed(Stop):
    """A worker of the demo ended by itself, again and again."""

    code = "demo_worker_failed"
    remedy = "Read its log."


class Fleet:
    """The three workers. ``environment``: what they are started with; ``folder``: where their logs go."""

    def __init__(self, environment: Mapping[str, str], folder: Path, tell: Callable[[str], None]) -> None:
        self._environment = environment
        self._folder = folder
        self._tell = tell
        self._workers: dict[Role, Child] = {}
        self._armed: dict[Role, tuple[CrashPoint, Path]] = {}
        self._restarts = 0
        self.kills = 0

    def arm(self, role: Role, point: CrashPoint, marker: Path) -> None:
        """Processes of this role, from the next start on, kill themselves at the point while there is no
        marker.
        """
        self._armed[role] = (point, marker)

    def start(self, role: Role) -> int:
        """The new process's id."""
        environment = dict(self._environment)
        if role in self._armed:
            point, marker = self._armed[role]
            environment |= {CRASH_ENV: point, CRASH_MARKER_ENV: str(marker)}
        command = [
            sys.executable, "-m", "perdure.console.main", "worker", "--role", role.value, "--app", APP,
        ]  # fmt: skip
        self._workers[role] = Child(role.value, command, environment, self._folder / f"{role.value}.log")
        return self._workers[role].pid

    def pid(self, role: Role) -> int:
        return self._workers[role].pid

    def kill(self, role: Role) -> None:
        self._workers[role].kill()
        self.kills += 1

    def has_killed_itself(self, role: Role) -> bool:
        """Whether its crash point was reached; said once, then it is as good as killed from outside."""
        if role not in self._armed or not self._workers[role].was_killed:
            return False
        self.kills += 1
        return True

    def tend(self) -> None:
        """Start again what ended by itself, as a supervisor would. A crash point that was reached is not
        meant.

        Raises :class:`WorkerFailed` when that does not help.
        """
        for role, worker in list(self._workers.items()):
            if worker.exit_code is None or (role in self._armed and worker.was_killed):
                continue
            if self._restarts == RESTARTS_MAX:
                raise WorkerFailed(
                    f"{role.value}, exit code {worker.exit_code}: {worker.log}\n{worker.log_tail()}\n"
                )
            self._restarts += 1
            self._tell(f"the {role.value} ended by itself (exit code {worker.exit_code}); starting it again")
            self.start(role)

    def end(self, *, at_once: bool = False) -> None:
        """Ask all to end what they do and leave; by force, if they take too long.

        ``at_once``: to leave what they do as it is, which is what a second request means to a worker. They
        leave their groups all the same, so that a cluster need not wait for them.
        """
        for worker in self._workers.values():
            worker.ask_to_end()
        if at_once and any(worker.exit_code is None for worker in self._workers.values()):
            pause(SECOND_REQUEST_S)
            for worker in self._workers.values():
                worker.ask_to_end()
        for worker in self._workers.values():
            worker.end(LEAVE_TIMEOUT_S if at_once else DRAIN_TIMEOUT_S)
