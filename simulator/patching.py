"""What planted bugs are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Patches: TypeAlias = list[tuple[object, str, object]]
"""(owner, name of the attribute, what stands there instead)."""


def always(value: object) -> Callable[..., Any]:
    """A function that answers this, whatever it is given."""

    def instead(*_: object, **__: object) -> object:
        return value

    return instead
