"""What every command shares: the global options, the settings they lead to, and how answers are printed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.console import Console

from perdure.connectors.settings import Loaded, SettingInvalid, Settings, load_settings
from perdure.schemas.errors import PerdureError, Reject, Restore, Retry, Stop

if TYPE_CHECKING:
    from perdure.connectors.client import Client

# The global options, each with whether it takes a value. They are taken anywhere on the command line.
GLOBAL_OPTIONS: Final[Mapping[str, bool]] = {
    "--config": True,
    "--bootstrap": True,
    "--namespace": True,
    "--state-dir": True,
    "--log-level": True,
    "--set": True,
    "--json": False,
}

EXIT_CODES: Final[Mapping[type[PerdureError], int]] = {Reject: 2, Stop: 3, Retry: 4, Restore: 4}
EXIT_ERROR: Final = 1


@dataclass
class Session:
    """One invocation of the command line."""

    flags: Mapping[str, object] = field(default_factory=dict[str, object])
    file: Path | None = None
    is_json: bool = False

    @cached_property
    def loaded(self) -> Loaded:
        return load_settings(os.environ, file=self.file, flags=self.flags)

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    @cached_property
    def out(self) -> Console:
        return Console(highlight=False, soft_wrap=not sys.stdout.isatty())

    @cached_property
    def err(self) -> Console:
        return Console(highlight=False, stderr=True, soft_wrap=True)

    def client(self) -> Client:
        """A client with the session's settings; to be closed."""
        from perdure.connectors.client import Client

        return Client(self.settings)

    def say(self, text: str) -> None:
        """A remark to a person; not printed where a program reads."""
        if not self.is_json:
            self.out.print(text, markup=False)

    def note(self, text: str) -> None:
        """A remark beside the answer, on standard error."""
        self.err.print(text, style="dim", markup=False)


def hoisted(arguments: Sequence[str]) -> list[str]:
    """Move the global options in front of the command, up to a ``--``; their values with them."""
    front: list[str] = []
    rest: list[str] = []
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            rest += [word, *waiting]
            break
        name, equals, _ = word.partition("=")
        takes_value = GLOBAL_OPTIONS.get(name)
        if takes_value is None:
            rest.append(word)
        elif takes_value and not equals and waiting:
            front += [word, waiting.pop(0)]
        else:
            front.append(word)
    return front + rest


def parsed_set(pairs: Sequence[str]) -> dict[str, object]:
    """``--set name=value`` options as flags."""
    flags: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise SettingInvalid(f"--set {pair!r} is not NAME=VALUE.")
        flags[name.strip()] = value
    return flags


def plain(value: object) -> Any:
    """Records as plain JSON values: bytes that hold JSON are shown as the JSON they hold."""
    return _unfolded(msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True))


def json_line(value: object) -> str:
    return json.dumps(plain(value), ensure_ascii=False, separators=(", ", ": "), default=_shown_bytes)


def exit_code_of(error: PerdureError) -> int:
    """By what the caller must do: 2 change the input, 3 mend the cause, 4 try again."""
    for kind, code in EXIT_CODES.items():
        if isinstance(error, kind):
            return code
    return EXIT_ERROR


def shown_error(error: PerdureError) -> dict[str, str]:
    """An error as a program wants it."""
    return {"code": error.code, "message": str(error.args[0]), "remedy": error.remedy}


def _unfolded(value: Any) -> Any:
    match value:
        case dict():
            return {name: _unfolded(each) for name, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_unfolded(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
        case bytes():
            try:
                return json.loads(value)
            except ValueError:
                return _shown_bytes(value)
        case _:
            return value


def _shown_bytes(value: object) -> str:
    assert isinstance(value, bytes)
    return value.hex()
