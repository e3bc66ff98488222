"""The settings of perdure: one typed record, and where each value came from.

Later wins: defaults < file (``perdure.toml`` in the working folder, or ``--config``) < environment
(``PERDURE_*``) < flags. ``kafka.*`` is passed through to every Kafka client: a ``[kafka]`` table in the file,
``PERDURE_KAFKA_SASL_USERNAME`` for ``kafka.sasl.username`` in the environment, ``--set
kafka.sasl.username=...``.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from perdure.schemas.errors import Reject
from perdure.topics.table import NAMESPACE_DEFAULT, PARTITIONS_DEFAULT, REPLICATION_DEFAULT

FILE_NAME: Final = "perdure.toml"
PREFIX: Final = "PERDURE_"
KAFKA_PREFIX: Final = "PERDURE_KAFKA_"
CONFIG_VARIABLE: Final = "PERDURE_CONFIG"
MASKED: Final = "********"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")

KafkaValue: TypeAlias = str | int | bool

# Names under which others already know a value; perdure's own name wins.
_OTHER_VARIABLES: Final = {
    "anthropic_api_key": "ANTHROPIC_API_KEY",
    "anthropic_base_url": "ANTHROPIC_BASE_URL",
}
# Variables that steer perdure without being settings.
_NOT_SETTINGS: Final = frozenset(
    {"PERDURE_CONFIG", "PERDURE_CRASH", "PERDURE_CRASH_MARKER", "PERDURE_CRASH_ORDER"}
)
_SECRET_KAFKA: Final = re.compile(
    r"password|secret|jaas|token|\.pem$|oauthbearer\.config|basic\.auth", re.IGNORECASE
)
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class SettingUnknown(Reject):
    """There is no such setting."""

    code = "setting_unknown"
    remedy = "See `perdure config show` for the names."


class SettingInvalid(Reject):
    """A setting has a value it cannot have."""

    code = "setting_invalid"
    remedy = "Correct it where `perdure config show` says it comes from."


class Secret:
    """A value that is not shown by accident."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASKED!r})"

    def __str__(self) -> str:
        return MASKED

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reveal() == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class Source(Enum):
    """Where a value came from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Origin:
    """``where``: the file or the variable; empty for defaults and flags."""

    source: Source
    where: str = ""

    def __str__(self) -> str:
        return f"{self.source.value} {self.where}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting. The comment beside a field is its documentation (``perdure config show``)."""

    bootstrap: str = "127.0.0.1:9092"
    namespace: str = NAMESPACE_DEFAULT
    partitions: int = PARTITIONS_DEFAULT
    replication: int = REPLICATION_DEFAULT
    state_dir: Path = Path(".perdure/state")
    slot: str | None = None
    app: str | None = None
    anthropic_base_url: str | None = None
    anthropic_api_key: Secret | None = None
    approval_token_key: Secret | None = None
    approval_token_keys_older: Secret | None = None
    blob_store: str | None = None
    finished_runs_retention: timedelta = timedelta(days=14)
    tool_concurrency: int = 64
    model_concurrency: int = 64
    model_requests_per_min: int | None = None
    model_input_tokens_per_min: int | None = None
    model_output_tokens_per_min: int | None = None
    log_level: str = "info"
    kafka: Mapping[str, KafkaValue] = field(default_factory=dict[str, KafkaValue])

    @property
    def token_keys_older(self) -> tuple[bytes, ...]:
        """Each of ``approval_token_keys_older``."""
        given = self.approval_token_keys_older
        texts = given.reveal().split(",") if given is not None else []
        return tuple(text.strip().encode() for text in texts if text.strip())


DESCRIPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bootstrap": "Kafka's host:port, several with commas between.",
        "namespace": "Prefix of every topic, group and transactional id.",
        "partitions": "Of each run-keyed topic; final once the topics are made.",
        "replication": "Copies of each partition; 3 in production.",
        "state_dir": "Where workers keep their slots: RocksDB, rebuilt from the log if it is gone.",
        "slot": "Name of the worker's slot; the first free one by default.",
        "app": "module:object of the agents a worker serves.",
        "anthropic_base_url": "Where the Messages API is reached, if not at its own address.",
        "anthropic_api_key": "Key of the Messages API.",
        "approval_token_key": "Key of the tokens that bind a decision to what was shown, the same for all.",
        "approval_token_keys_older": "Keys before it that are still taken, with commas between.",
        "blob_store": "Where large tool results are kept whole: a folder, or s3://BUCKET/PREFIX.",
        "finished_runs_retention": "How long a run is kept after its last end, before it is purged.",
        "tool_concurrency": "Tool calls a worker makes at the same time.",
        "model_concurrency": "Model calls a worker makes at the same time.",
        "model_requests_per_min": "Limit of the provider's key, of all workers together; none by default.",
        "model_input_tokens_per_min": "The same, of tokens in that are not read from a cache.",
        "model_output_tokens_per_min": "The same, of tokens out.",
        "log_level": f"One of {', '.join(LOG_LEVELS)}.",
        "kafka": "Passed through to every Kafka client.",
    }
)

_AT_LEAST_ONE: Final = (
    "partitions",
    "replication",
    "tool_concurrency",
    "model_concurrency",
    "model_requests_per_min",
    "model_input_tokens_per_min",
    "model_output_tokens_per_min",
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """``origins``: by setting name, ``kafka.*`` one by one. ``ignored``: PERDURE_* variables that mean
    nothing.
    """

    settings: Settings
    origins: Mapping[str, Origin]
    ignored: tuple[str, ...] = ()

    def shown(self) -> list[tuple[str, str, Origin]]:
        """(name, value, origin) of every setting, secrets masked."""
        rows: list[tuple[str, str, Origin]] = []
        for name in sorted(_NAMES - {"kafka"}):
            value = cast("object", getattr(self.settings, name))
            shown = (
                duration_text(value) if isinstance(value, timedelta) else "" if value is None else str(value)
            )
            rows.append((name, shown, self.origins.get(name, Origin(Source.DEFAULT))))
        for key, value in sorted(self.settings.kafka.items()):
            name = f"kafka.{key}"
            rows.append((name, MASKED if _SECRET_KAFKA.search(key) else str(value), self.origins[name]))
        return rows


def load_settings(
    environment: Mapping[str, str],
    *,
    file: Path | None = None,
    folder: Path | None = None,
    flags: Mapping[str, object] | None = None,
) -> Loaded:
    """Put the settings together.

    Args:
        environment: variables, usually ``os.environ``.
        file: the configuration file; by default PERDURE_CONFIG, else ``perdure.toml`` in ``folder`` if
            there is one.
        folder: the working folder.
        flags: by setting name (``kafka.x.y`` included); None values are not given.

    Raises:
        SettingUnknown, SettingInvalid: naming the setting and where it came from.
    """
    values: dict[str, object] = {}
    origins: dict[str, Origin] = {}

    def put(name: str, value: object, origin: Origin) -> None:
        if name not in _NAMES and not name.startswith("kafka."):
            close = difflib.get_close_matches(name, _NAMES, 1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise SettingUnknown(f"{name} ({origin}).{hint}")
        values[name] = _parsed(name, value, origin)
        origins[name] = origin

    path = _file(environment, file, folder or Path())
    if path is not None:
        for name, value in _read(path).items():
            put(name, value, Origin(Source.FILE, str(path)))
    ignored = _take_environment(environment, put)
    for name, value in (flags or {}).items():
        if value is not None:
            put(name, value, Origin(Source.FLAG))
    kafka = {
        name.removeprefix("kafka."): value for name, value in values.items() if name.startswith("kafka.")
    }
    plain = {name: value for name, value in values.items() if not name.startswith("kafka.")}
    return Loaded(Settings(**cast("Any", plain), kafka=cast("Any", kafka)), origins, ignored)


def duration_text(value: timedelta) -> str:
    """The shortest exact form: 14d, 36h, 90s, 250ms."""
    milliseconds = value // timedelta(milliseconds=1)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def _file(environment: Mapping[str, str], file: Path | None, folder: Path) -> Path | None:
    wanted = file or (Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None)
    if wanted is None:
        found = folder / FILE_NAME
        return found if found.is_file() else None
    if not wanted.is_file():
        raise SettingInvalid(f"There is no configuration file {wanted}.")
    return wanted


def _read(path: Path) -> dict[str, object]:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SettingInvalid(f"{path} cannot be read: {error}.") from error
    flat: dict[str, object] = {}
    for name, value in raw.items():
        if name == "kafka" and isinstance(value, dict):
            flat.update(_flattened("kafka", cast("dict[str, object]", value)))
        else:
            flat[name] = value
    return flat


def _flattened(name: str, table: Mapping[str, object]) -> dict[str, object]:
    """TOML reads ``sasl.username = "x"`` as a table in a table; Kafka's names are flat."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flattened(f"{name}.{key}", cast("dict[str, object]", value)))
        else:
            flat[f"{name}.{key}"] = value
    return flat


def _take_environment(environment: Mapping[str, str], put: Any) -> tuple[str, ...]:
    for name, variable in _OTHER_VARIABLES.items():
        if environment.get(variable):
            put(name, environment[variable], Origin(Source.ENVIRONMENT, variable))
    ignored: list[str] = []
    for variable in sorted(environment):
        value = environment[variable]
        if not variable.startswith(PREFIX) or variable in _NOT_SETTINGS or value == "":
            continue
        if variable.startswith(KAFKA_PREFIX):
            name = "kafka." + variable.removeprefix(KAFKA_PREFIX).lower().replace("_", ".")
        else:
            name = variable.removeprefix(PREFIX).lower()
            if name not in _NAMES:
                ignored.append(variable)
                continue
        put(name, value, Origin(Source.ENVIRONMENT, variable))
    return tuple(ignored)


def _parsed(name: str, value: object, origin: Origin) -> object:
    def invalid(why: str) -> SettingInvalid:
        shown = "" if name in _SECRETS or _SECRET_KAFKA.search(name) else f" = {value!r}"
        return SettingInvalid(f"{name}{shown} ({origin}): {why}.")

    if name == "kafka":
        raise invalid("it is a table")
    if name.startswith("kafka."):
        if not isinstance(value, str | int | bool):
            raise invalid("it is a text, a number or a truth value")
        return value
    if name in _AT_LEAST_ONE:
        try:
            number = int(str(value))
        except ValueError:
            number = 0
        if number < 1 or isinstance(value, bool):
            raise invalid("it is a whole number of at least 1")
        return number
    if not isinstance(value, str | Path) or not str(value).strip():
        raise invalid("it is a text that is not empty")
    return _parsed_text(name, str(value).strip(), invalid)


def _parsed_text(name: str, text: str, invalid: Any) -> object:
    match name:
        case "state_dir":
            return Path(text).expanduser()
        case "finished_runs_retention":
            match = _DURATION.fullmatch(text)
            if match is None:
                raise invalid("it is a number with a unit: 250ms, 90s, 30m, 36h or 14d")
            return timedelta(**{_UNITS[match.group(2)]: int(match.group(1))})
        case "log_level":
            if text.lower() not in LOG_LEVELS:
                raise invalid(f"it is one of {', '.join(LOG_LEVELS)}")
            return text.lower()
        case _:
            return Secret(text) if name in _SECRETS else text


_NAMES: Final = frozenset(each.name for each in fields(Settings))
_SECRETS: Final = frozenset({"anthropic_api_key", "approval_token_key", "approval_token_keys_older"})
