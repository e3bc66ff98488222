"""Resume tokens: a decision holds for exactly what was shown.

A token is ``key id . nonce . tag . mac``. The tag shows that this nonce was given out under the key, whatever
for; the mac binds it to one run, call, tool, recipient and arguments. So a token of another question can be
told from one that nobody gave out.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from perdure.processors.machine.state import Call, Run
from perdure.schemas.values import Struct

KEY_ID_BYTES: Final = 4
TAG_HEX_CHARS: Final = 16
PARTS: Final = 4


class TokenKeys(Struct, frozen=True):
    """Secrets of the tokens: new ones are made with ``current``, those of ``older`` are still taken.

    ``is_strict``: a token under any other key is refused, and its question asked again. Else, where each
    machine made a key of its own, it is compared with the one in the log only.
    """

    current: bytes = b""
    older: tuple[bytes, ...] = ()
    is_strict: bool = False

    def __repr__(self) -> str:
        return f"TokenKeys({id_of(self.current)}, {len(self.older)} older)"

    def secret(self, key_id: str) -> bytes | None:
        return next((each for each in (self.current, *self.older) if id_of(each) == key_id), None)

    def knows(self, token: str) -> bool:
        return self.secret(token.partition(".")[0]) is not None


def id_of(secret: bytes) -> str:
    """What a token names its key by; says nothing of use about the key."""
    return hashlib.sha256(b"perdure token key id\n" + secret).digest()[:KEY_ID_BYTES].hex()


def resume_token(keys: TokenKeys, run: Run, call: Call, recipient: bytes, nonce: str) -> str:
    """The token of a question about ``call``. ``nonce`` tells apart two questions about the same call."""
    secret = keys.current
    return f"{id_of(secret)}.{nonce}.{_tag(secret, nonce)}.{_mac(secret, run, call, recipient, nonce)}"


def token_fault(keys: TokenKeys, run: Run, call: Call, shown: str, given: str) -> str | None:
    """The stable reason for which ``given`` does not decide the question with the token ``shown``.

    ``token_forged``: nobody gave it out. ``token_mismatch``: it is of another question, or what would be
    executed is no longer what was shown. ``token_key_unknown``: its key is not, or no longer, configured.
    """
    parts = given.encode("utf-8", "replace").decode().split(".")
    if len(parts) != PARTS:
        return "token_forged"
    key_id, nonce, tag, _ = parts
    is_same = is_same_text(shown, given)
    secret = keys.secret(key_id)
    if secret is None:
        return None if is_same and not keys.is_strict else "token_key_unknown"
    if not is_same_text(_tag(secret, nonce), tag):
        return "token_forged"
    expected = f"{key_id}.{nonce}.{tag}.{_mac(secret, run, call, call.recipient, nonce)}"
    return None if is_same and is_same_text(expected, given) else "token_mismatch"


def is_same_text(shown: str, given: str) -> bool:
    """Constant-time comparison."""
    return hmac.compare_digest(shown.encode("utf-8", "replace"), given.encode("utf-8", "replace"))


def _tag(secret: bytes, nonce: str) -> str:
    return _hmac(secret, f"nonce\n{nonce}")[:TAG_HEX_CHARS]


def _mac(secret: bytes, run: Run, call: Call, recipient: bytes, nonce: str) -> str:
    arguments = hashlib.sha256(call.arguments).hexdigest()
    bound = f"{run.run_id}\n{call.call_id}\n{call.tool}\n{recipient.hex()}\n{arguments}"
    return _hmac(secret, f"{nonce}\n{bound}")


def _hmac(secret: bytes, material: str) -> str:
    return hmac.new(secret, material.encode(), hashlib.sha256).hexdigest()
