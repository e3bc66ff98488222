"""What an MCP server last said of its tools, in a file: an agent can be declared while the server is down.

The file decides nothing. Each call is made only if the server's tool is still the one that was declared.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mcp.types import Tool as ServerTool

FOLDER: Final = Path(".perdure") / "mcp"

_log: Final = logging.getLogger(__name__)


class KnownTools:
    """The memory of one server. A file that cannot be read or written is none: it is only a convenience."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def remember(self, tools: Mapping[str, ServerTool]) -> None:
        listed = [
            tools[name].model_dump(mode="json", by_alias=True, exclude_none=True) for name in sorted(tools)
        ]
        text = json.dumps({"tools": listed}, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
        try:
            if self._path.is_file() and self._path.read_text(encoding="utf-8") == text:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=self._path.parent, prefix=f".{self._path.name}-", delete=False
            ) as partial:
                partial.write(text)
            Path(partial.name).replace(self._path)
        except OSError as error:
            _log.warning(
                "the tools of an MCP server are not remembered: %s",
                error,
                extra={"action": "mcp_not_remembered"},
            )

    def recall(self) -> dict[str, ServerTool] | None:
        """None: nothing is remembered."""
        try:
            read: Any = json.loads(self._path.read_text(encoding="utf-8"))
            tools = [ServerTool.model_validate(each) for each in read["tools"]]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s is not usable: %s", self._path, error, extra={"action": "mcp_not_recalled"})
            return None
        return {each.name: each for each in tools}
