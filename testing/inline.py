"""Agents whose plain functions run on the event loop instead of in threads. Their definitions stay as they
are, so that runs are pinned to the same content hash as in production.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from perdure.connectors.agent import Agent
from perdure.connectors.reconciler import Reconciler
from perdure.connectors.tool import Tool


def inlined(agents: Iterable[Agent]) -> tuple[Agent, ...]:
    """The agents with every tool and reconciler callable without a thread."""
    done: dict[Reconciler, Reconciler] = {}
    return tuple(replace(agent, tools=[_inlined(each, done) for each in agent.tools]) for agent in agents)


def _inlined(tool: Tool[Any, Any], done: dict[Reconciler, Reconciler]) -> Tool[Any, Any]:
    reconcile = tool.reconcile
    if reconcile is not None:
        reconcile = done.setdefault(reconcile, _asked_inline(reconcile))
    if tool.is_async:
        return replace(tool, reconcile=reconcile)
    return replace(tool, reconcile=reconcile, function=_awaitable(tool.function), is_async=True)


def _asked_inline(reconciler: Reconciler) -> Reconciler:
    if reconciler.is_async:
        return reconciler
    function = _awaitable(reconciler.function)
    function.__doc__ = reconciler.function.__doc__  # it is the description, and so a part of the hash
    return replace(reconciler, function=function, is_async=True)


def _awaitable(function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call
