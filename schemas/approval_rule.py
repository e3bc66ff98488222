"""Approval rules: an agent's policy, as data, on which calls a person has to approve."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from perdure.schemas.values import Effect, Struct

GLOB: Final = frozenset("*?[")


class ApprovalRule(Struct, frozen=True):
    """A call needs approval if all that the rule names fits it.

    ``tool``: the tool's name, or a glob (``delete_*``). ``effect``: the tool's effect class; None: any.
    ``arguments``: JSON Schema that the call's arguments match; None: any. Rules only ever add to what the
    tools themselves ask for.
    """

    tool: str = "*"
    effect: Effect | None = None
    arguments: Mapping[str, Any] | None = None

    def fits(self, tool: str, effect: Effect) -> bool:
        """Whether the rule speaks of this tool; ``arguments`` is left to the caller."""
        return fnmatchcase(tool, self.tool) and self.effect in {None, effect}

    @property
    def is_glob(self) -> bool:
        return not GLOB.isdisjoint(self.tool)
