"""Field faults, each as the sequence that was reported, and the whole kind around it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.testing import Died

MODULES = (
    "perdure.processors.orchestrator.transaction",
    "perdure.processors.executor.claims",
    "perdure.processors.executor.dispatch",
)


@pytest.fixture
def die_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Arm a named crash point: whoever reaches it for the ``nth`` time dies there, once."""

    def arm(point: str, nth: int = 1) -> None:
        reached = 0

        def crash_point(name: str) -> None:
            nonlocal reached
            reached += name == point
            if name == point and reached == nth:
                raise Died

        for module in MODULES:
            monkeypatch.setattr(f"{module}.crash_point", crash_point)

    return arm
