"""Settings: what wins, where a value came from, and what never shows."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from perdure.connectors.settings import (
    DESCRIPTIONS,
    MASKED,
    Secret,
    SettingInvalid,
    Settings,
    SettingUnknown,
    Source,
    duration_text,
    load_settings,
)


def test_later_sources_win_and_each_value_names_its_origin(tmp_path: Path) -> None:
    """Defaults yield to the file, the file to the environment, the environment to flags."""
    file = tmp_path / "perdure.toml"
    file.write_text('bootstrap = "file:1"\nnamespace = "file"\npartitions = 3\n')
    loaded = load_settings(
        {"PERDURE_BOOTSTRAP": "env:1", "PERDURE_NAMESPACE": "env"},
        folder=tmp_path,
        flags={"bootstrap": "flag:1", "slot": None},
    )
    assert (loaded.settings.bootstrap, loaded.settings.namespace) == ("flag:1", "env")
    assert (loaded.settings.partitions, loaded.settings.replication) == (3, 1)
    origins = {name: origin for name, _, origin in loaded.shown()}
    assert origins["bootstrap"].source is Source.FLAG
    assert str(origins["namespace"]) == "environment PERDURE_NAMESPACE"
    assert str(origins["partitions"]) == f"file {file}"
    assert origins["replication"].source is Source.DEFAULT


def test_kafka_settings_pass_through_from_every_source(tmp_path: Path) -> None:
    """Dotted keys of the [kafka] table, PERDURE_KAFKA_* and kafka.* flags become flat client settings."""
    file = tmp_path / "other.toml"
    file.write_text(
        '[kafka]\nsasl.mechanism = "PLAIN"\n"socket.timeout.ms" = 7000\nsocket.keepalive.enable = true\n'
    )
    loaded = load_settings(
        {"PERDURE_KAFKA_SASL_PASSWORD": "hush", "PERDURE_CONFIG": str(file)},
        flags={"kafka.security.protocol": "SASL_SSL"},
    )
    assert loaded.settings.kafka == {
        "sasl.mechanism": "PLAIN",
        "socket.timeout.ms": 7000,
        "socket.keepalive.enable": True,
        "sasl.password": "hush",
        "security.protocol": "SASL_SSL",
    }


def test_secrets_are_masked_wherever_they_would_show() -> None:
    """Neither repr, nor str, nor the shown rows, nor an error carry a secret's value."""
    loaded = load_settings(
        {
            "ANTHROPIC_API_KEY": "sk-hush",
            "PERDURE_KAFKA_SASL_PASSWORD": "pw-hush",
            "PERDURE_APPROVAL_TOKEN_KEY": "t-hush",
        }
    )
    key = loaded.settings.anthropic_api_key
    assert key is not None
    assert key.reveal() == "sk-hush"
    assert "hush" not in repr(key) + str(key) + f"{key}"
    shown = {name: value for name, value, _ in loaded.shown()}
    assert shown["anthropic_api_key"] == shown["kafka.sasl.password"] == shown["approval_token_key"] == MASKED
    with pytest.raises(SettingInvalid) as raised:
        load_settings({}, flags={"kafka.sasl.password": ["hush"]})
    assert "hush" not in str(raised.value)


def test_perdures_own_variable_wins_over_the_providers() -> None:
    """PERDURE_ANTHROPIC_API_KEY is taken before ANTHROPIC_API_KEY."""
    loaded = load_settings({"ANTHROPIC_API_KEY": "a", "PERDURE_ANTHROPIC_API_KEY": "b"})
    assert loaded.settings.anthropic_api_key == Secret("b")


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({"partitions": "0"}, "partitions = '0' (flag): it is a whole number of at least 1"),
        ({"partitions": True}, "at least 1"),
        ({"log_level": "loud"}, "one of debug"),
        ({"finished_runs_retention": "2 weeks"}, "with a unit"),
        ({"bootstrap": " "}, "not empty"),
        ({"kafka": "x"}, "it is a table"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_origin(flags: dict[str, object], wanted: str) -> None:
    """The error says which setting, from where, and what it should be."""
    with pytest.raises(SettingInvalid) as raised:
        load_settings({}, flags=flags)
    assert wanted in str(raised.value)


def test_an_unknown_setting_in_the_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    """A misspelt key is an error, not a silent default."""
    (tmp_path / "perdure.toml").write_text('bootstap = "x:1"\n')
    with pytest.raises(SettingUnknown, match="Did you mean bootstrap"):
        load_settings({}, folder=tmp_path)


def test_an_unknown_variable_is_reported_but_harmless() -> None:
    """PERDURE_* variables that are no settings are listed, those that steer crashes are not."""
    loaded = load_settings({"PERDURE_BOOTSTAP": "x:1", "PERDURE_CRASH": "model.mid_stream", "PATH": "/"})
    assert loaded.ignored == ("PERDURE_BOOTSTAP",)


@pytest.mark.parametrize("broken", ["a = [", "\udcff"])
def test_an_unreadable_file_is_refused(tmp_path: Path, broken: str) -> None:
    """Broken TOML and bytes that are no UTF-8 name the file."""
    (tmp_path / "perdure.toml").write_bytes(broken.encode("utf-8", "surrogateescape"))
    with pytest.raises(SettingInvalid, match=r"perdure\.toml cannot be read"):
        load_settings({}, folder=tmp_path)
    with pytest.raises(SettingInvalid, match="no configuration file"):
        load_settings({}, file=tmp_path / "missing.toml")


@pytest.mark.parametrize("text", ["250ms", "90s", "5m", "36h", "14d"])
def test_durations_are_shown_as_they_are_written(text: str) -> None:
    """Parsing and showing a duration are inverse."""
    loaded = load_settings({}, flags={"finished_runs_retention": text})
    assert duration_text(loaded.settings.finished_runs_retention) == text
    assert load_settings({}).settings.finished_runs_retention == timedelta(days=14)


def test_every_setting_is_described() -> None:
    """The descriptions name exactly the settings there are."""
    assert set(DESCRIPTIONS) == set(Settings.__dataclass_fields__)
