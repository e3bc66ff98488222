"""Recipients: who would carry out a call, as a person who approves it is shown."""

from __future__ import annotations

import hashlib

import msgspec

from perdure.schemas.canonical import canonical_json, normalise_json
from perdure.schemas.definition import ToolDefinition
from perdure.schemas.values import ExecutorKind, Recipient


def recipient_of(tool: ToolDefinition) -> Recipient:
    """Executor kind, server, and a hash of all that is said of the tool, by its author and by its server."""
    said = {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "server_schema": tool.server_schema,
    }
    schema = hashlib.sha256(canonical_json(normalise_json(msgspec.to_builtins(said)))).hexdigest()
    if tool.agent is not None:
        return Recipient(ExecutorKind.AGENT, f"{tool.agent} {tool.agent_version or '(newest)'}", schema)
    return Recipient(tool.executor, tool.server, schema)


def digest_of(recipient: Recipient) -> bytes:
    """What a token and a request are bound to: 32 bytes."""
    return hashlib.sha256(canonical_json(msgspec.to_builtins(recipient))).digest()
