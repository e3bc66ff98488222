"""Planted bugs: each undoes one thing that perdure does for a reason. The simulator has to catch every one.

They are patched into the product's classes from here, for the time of one life: the product carries no
switches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final
from unittest import mock

from simulator import planted_executor, planted_machine, planted_orchestrator
from simulator.life import Lived, live


@dataclass(frozen=True, slots=True)
class Plant:
    """``what``: what is undone. ``patches``: (owner, name of the attribute, what stands there instead)."""

    what: str
    patches: Callable[[], list[tuple[object, str, object]]]


PLANTS: Final[Mapping[str, Plant]] = {
    name: Plant((patches.__doc__ or "").strip(), patches)
    for module in (planted_orchestrator, planted_executor, planted_machine)
    for name, patches in module.PLANTS.items()
}


@contextmanager
def planted(name: str) -> Generator[None]:
    """While inside, the product has this bug."""
    with ExitStack() as stack:
        for owner, attribute, instead in PLANTS[name].patches():
            stack.enter_context(mock.patch.object(owner, attribute, instead))
        yield


def live_with(name: str, seed: int) -> Lived:
    """A seed's life with a planted bug in it."""
    with planted(name):
        return live(seed)
