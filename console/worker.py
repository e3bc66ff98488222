"""``perdure worker``: a process of one role, or of all of them."""

from __future__ import annotations

import logging
import os
import sys
from enum import StrEnum
from typing import Annotated

import typer

from perdure.console.session import Session
from perdure.topics.table import Role


class RoleChoice(StrEnum):
    """What ``--role`` takes."""

    ORCHESTRATOR = Role.ORCHESTRATOR.value
    MODEL_CALLER = Role.MODEL_CALLER.value
    TOOL_EXECUTOR = Role.TOOL_EXECUTOR.value
    ALL = "all"

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(Role) if self is RoleChoice.ALL else (Role(self.value),)


def register(app: typer.Typer) -> None:
    app.command("worker")(worker)


def worker(
    ctx: typer.Context,
    role: Annotated[RoleChoice, typer.Option(help="What this process does.")] = RoleChoice.ALL,
    app: Annotated[str | None, typer.Option(help="module:object, the agents it serves.")] = None,
    slot: Annotated[str | None, typer.Option(help="The slot's name; the first free one by default.")] = None,
) -> None:
    """Run one role, or all of them, until told to stop: SIGTERM and Ctrl-C drain, a second one leaves at
    once.
    """
    from perdure.console.serving import run_worker

    session: Session = ctx.obj
    session.flags = {**session.flags, **({"app": app} if app else {}), **({"slot": slot} if slot else {})}
    code = run_worker(session.settings, role.roles)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a tool's thread that does not end must not keep the process alive
