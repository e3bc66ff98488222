"""Headers of a request: who it speaks of, so that it can be answered even when its value can not be decoded.

They repeat fields of the value and are never believed over a value that can be read. Each name stands once; a
record with a missing, repeated or ill-formed header has no identity, and an executor can only set it aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perdure.schemas.keys import ResultKey
from perdure.schemas.limits import CALL_ID_CHARS_MAX
from perdure.schemas.requests import ModelRequest, ToolRequest
from perdure.schemas.values import RUN_ID_PATTERN, Effect
from perdure.topics.log import Headers
from perdure.topics.table import Role

ROLE: Final = "perdure-role"
RUN: Final = "perdure-run"
TURN: Final = "perdure-turn"
CALL: Final = "perdure-call"
ATTEMPT: Final = "perdure-attempt"
REQUEST: Final = "perdure-request"
EFFECT: Final = "perdure-effect"

NAMES: Final = frozenset({ROLE, RUN, TURN, CALL, ATTEMPT, REQUEST, EFFECT})
REQUEST_ID_CHARS_MAX: Final = 128
NUMBER_DIGITS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """What a result has to name. ``call_id`` is empty and ``effect`` None for model requests."""

    role: Role
    run_id: str
    turn: int
    call_id: str
    attempt: int
    request_id: str
    effect: Effect | None = None

    @property
    def key(self) -> bytes:
        """Key of a result on run-results: run_id/turn/call/attempt."""
        return bytes(ResultKey(self.run_id, self.turn, self.call_id, self.attempt))


def identity_of(request: ModelRequest | ToolRequest) -> RequestIdentity:
    """The identity that a decoded request has."""
    match request:
        case ModelRequest():
            role, call_id, effect = Role.MODEL_CALLER, "", None
        case ToolRequest():
            role, call_id, effect = Role.TOOL_EXECUTOR, request.call_id, request.effect
    return RequestIdentity(
        role, request.run_id, request.turn, call_id, request.attempt, request.request_id, effect
    )


def request_headers(request: ModelRequest | ToolRequest) -> Headers:
    """The headers to write beside ``request``."""
    identity = identity_of(request)
    return (
        (ROLE, identity.role.value.encode()),
        (RUN, identity.run_id.encode()),
        (TURN, str(identity.turn).encode()),
        (CALL, identity.call_id.encode()),
        (ATTEMPT, str(identity.attempt).encode()),
        (REQUEST, identity.request_id.encode()),
        (EFFECT, identity.effect.value.encode() if identity.effect is not None else b""),
    )


def parse_headers(headers: Headers) -> RequestIdentity | None:
    """The identity in ``headers``, None if it is not whole and well-formed. Foreign headers are ignored."""
    found: dict[str, str] = {}
    for name, value in headers:
        if name in NAMES:
            if name in found:
                return None
            try:
                found[name] = value.decode()
            except UnicodeDecodeError:
                return None
    if found.keys() != NAMES:
        return None
    turn, attempt = _number(found[TURN]), _number(found[ATTEMPT])
    if turn is None or attempt is None or not _names_a_request(found):
        return None
    try:
        role = Role(found[ROLE])
        effect = Effect(found[EFFECT]) if found[EFFECT] else None
    except ValueError:
        return None
    if role is Role.ORCHESTRATOR or (role is Role.TOOL_EXECUTOR) != (effect is not None):
        return None
    return RequestIdentity(role, found[RUN], turn, found[CALL], attempt, found[REQUEST], effect)


def _names_a_request(found: dict[str, str]) -> bool:
    return (
        RUN_ID_PATTERN.fullmatch(found[RUN]) is not None
        and len(found[CALL]) <= CALL_ID_CHARS_MAX
        and 0 < len(found[REQUEST]) <= REQUEST_ID_CHARS_MAX
        and (found[CALL] != "") == (found[ROLE] == Role.TOOL_EXECUTOR.value)
    )


def _number(text: str) -> int | None:
    """A count as ``request_headers`` writes it; ``int`` would also take signs, spaces and other digits."""
    if not (text.isascii() and text.isdecimal()) or len(text) > NUMBER_DIGITS_MAX:
        return None
    return int(text)
