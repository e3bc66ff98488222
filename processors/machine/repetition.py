"""Repetition: a model that makes the same useless call again and again is told so, then stopped.

A call is useless if it failed or had the same result as the identical call before it. With ``repeats_max``
N, N - 1 useless calls execute and the N-th is intercepted: answered with an error that explains the loop.
Cycles count as well, since the window holds the last WINDOW_CALLS calls whatever stands between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from perdure.processors.machine.state import Run, Seen
from perdure.schemas.canonical import canonical_json, loads_json

WINDOW_CALLS: Final = 20
HASH_BYTES: Final = 12
INTERCEPTIONS_MAX: Final = 3


def fingerprint(tool: str, arguments: bytes, cosmetic: Collection[str]) -> bytes:
    """What makes two calls identical: the tool and its arguments, canonical, without the cosmetic ones."""
    value = loads_json(arguments)
    if cosmetic and isinstance(value, dict):
        value = {name: part for name, part in value.items() if name not in cosmetic}
    material = tool.encode("utf-8", "replace") + b"\n" + canonical_json(value)
    return hashlib.sha256(material).digest()[:HASH_BYTES]


def is_last_a_repetition(run: Run, repeats_max: int) -> bool:
    """Whether the newest call of the window is one too many of its kind.

    A call of the same turn that has no result yet counts as useless if an identical one stands before it:
    they were asked for together, so the model could not have learnt anything between them.
    """
    if repeats_max <= 0:
        return False
    *earlier, newest = run.window
    same = [seen for seen in earlier if seen.fingerprint == newest.fingerprint]
    useless = sum(seen.is_useless or (seen.result == b"" and place > 0) for place, seen in enumerate(same))
    return useless >= repeats_max - 1


def remember(run: Run, mark: bytes, call_id: str) -> Run:
    """Add a call to the window."""
    return replace(run, window=(*run.window, Seen(mark, call_id))[-WINDOW_CALLS:])


def learn(run: Run, call_id: str, content: bytes, *, is_error: bool) -> Run:
    """Note the result of a call of the window."""
    at = next((n for n in range(len(run.window) - 1, -1, -1) if run.window[n].call_id == call_id), None)
    if at is None:
        return run
    result = hashlib.sha256(content).digest()[:HASH_BYTES]
    mark = run.window[at].fingerprint
    before = next((seen for seen in reversed(run.window[:at]) if seen.fingerprint == mark), None)
    is_useless = is_error or (before is not None and before.result == result)
    seen = replace(run.window[at], result=result, is_useless=is_useless)
    return replace(run, window=(*run.window[:at], seen, *run.window[at + 1 :]))
