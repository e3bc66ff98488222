"""Resume tokens: a decision holds for exactly what was shown."""

from __future__ import annotations

import hashlib
import hmac

from perdure.processors.machine.state import Call, Run


def resume_token(key: bytes, run: Run, call: Call, nonce: str) -> str:
    """HMAC-SHA256 over run, execution, call, attempt, tool and the arguments' hash, with a nonce that it
    begins with.

    The nonce tells apart two questions about the same call.
    """
    attempt = call.attempt.number if call.attempt else 0
    arguments = hashlib.sha256(call.arguments).hexdigest()
    material = "\n".join(
        (nonce, run.run_id, str(run.execution), call.call_id, str(attempt), call.tool, arguments)
    )
    return f"{nonce}.{hmac.new(key, material.encode(), hashlib.sha256).hexdigest()}"


def is_same_token(shown: str, given: str) -> bool:
    """Constant-time comparison."""
    return hmac.compare_digest(shown.encode("utf-8", "replace"), given.encode("utf-8", "replace"))
