"""The one error tree of perdure, grouped by what the caller must do.

::

    PerdureError
    ├── Retry      nothing was changed; do the same thing again
    ├── Restore    the outcome is unknown or ownership is gone; forget local state, start from the log
    ├── Reject     the input is at fault; the same input will always fail
    └── Stop       a person has to act before this process may go on

Every class carries a stable ``code`` (an identifier users may match on) and a ``remedy`` (what to do, in one
sentence). The docstring of a leaf is its default message.
"""

from __future__ import annotations

import inspect
from typing import ClassVar


class PerdureError(Exception):
    """Something went wrong in perdure."""

    code: ClassVar[str] = "error"
    remedy: ClassVar[str] = "Read the message; report it if it does not say what to do."

    def __init__(self, detail: str | None = None) -> None:
        summary = inspect.cleandoc(type(self).__doc__ or self.code).splitlines()[0]
        super().__init__(f"{summary} {detail}" if detail else summary)
        self.detail = detail

    def __str__(self) -> str:
        return f"[{self.code}] {self.args[0]} {self.remedy}"


class Retry(PerdureError):
    """The operation had no effect and may be repeated."""

    code = "retry"
    remedy = "Repeat the operation."


class Restore(PerdureError):
    """Local state can no longer be trusted."""

    code = "restore"
    remedy = "Forget local state and start again from the log."


class Reject(PerdureError):
    """The input is refused."""

    code = "reject"
    remedy = "Change the input; repeating it cannot help."


class Stop(PerdureError):
    """This process may not go on."""

    code = "stop"
    remedy = "Mend the cause, then start the process again."
