"""How large and how deep a record may be. The topic table says what topics accept."""

from __future__ import annotations

from typing import Final

PAYLOAD_BYTES_MAX: Final = 1 << 20
"""Largest command or result, encoded. What is larger is set aside as a dead letter."""

RECORD_BYTES_MAX: Final = 4 << 20
"""Largest record of any kind, encoded: what the topics accept. Nothing larger is encoded or decoded."""

ENTRIES_MAX: Final = 1 << 16
"""Most entries of one array or map in a record: a claimed million of empty ones is small on the wire only."""

DEAD_LETTER_HEAD_BYTES_MAX: Final = 64 << 10
"""How much of an input that could not be handled its dead letter keeps."""

JSON_DEPTH_MAX: Final = 128
"""Deepest nesting of arrays and objects that is taken from outside."""

JSON_DEPTH_STORED_MAX: Final = 192
"""Deepest nesting that is written and read at all: the former, and room for the messages it is put into."""

JSON_BYTES_MAX: Final = RECORD_BYTES_MAX
"""Largest JSON text that is parsed."""

RUN_ID_CHARS_MAX: Final = 128
"""Longest run id a client may choose, characters."""

RUN_ID_SUFFIX_CHARS_MAX: Final = 64
"""Longest suffix by which a child or fork is told from its parent, characters."""

CALL_ID_CHARS_MAX: Final = 256
"""Longest tool call id, characters."""

AGENT_CHARS_MAX: Final = 128
"""Longest agent name or version, characters."""

TOOL_NAME_CHARS_MAX: Final = 128
"""Longest tool name, characters: the provider's bound."""

TIMEOUT_MS_MAX: Final = 7 * 24 * 3_600_000
"""Longest that one call of a tool or of the model may take, or settle, ms."""

APPROVAL_TIMEOUT_MS_MAX: Final = 366 * 24 * 3_600_000
"""Longest that a run may wait for a person before it times out, ms."""

KEY_BYTES_MAX: Final = 1024
"""Longest record key that is parsed."""
