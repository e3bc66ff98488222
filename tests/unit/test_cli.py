"""The command line without a cluster: options, errors, settings, schemas, weight."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.connectors.blob_folder import FolderBlobs
from perdure.connectors.client import Client
from perdure.connectors.settings import Secret, SettingInvalid, Settings
from perdure.console.main import main
from perdure.console.serving import token_key
from perdure.console.session import exit_code_of, hoisted, parsed_set, plain
from perdure.processors.blobs import TEXT
from perdure.processors.clock import SystemEntropy
from perdure.schemas.events import Event, RunCompleted, ToolCompleted
from perdure.schemas.outputs import DeadLetter
from perdure.schemas.values import Budget, LogPosition, ResultSource
from perdure.topics.errors import Fenced, LogMisuse, RecordTooLarge, Unavailable

COMMANDS = (
    "dev", "worker", "view", "submit", "show", "runs", "cancel", "resume", "signal", "approvals", "approve",
    "reject", "decide", "blob", "topics", "config", "doctor", "schemas",
)  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    code = ended.value.code
    assert code is None or isinstance(code, int)
    return code or 0, out, err


def test_every_command_is_listed_and_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` names all commands; each has a help of its own."""
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert [name for name in COMMANDS if f" {name} " not in out] == []
    for name in COMMANDS:
        code, out, _ = run(capsys, name, "--help")
        assert code == 0, name
        assert "Usage: perdure" in out


def test_global_options_are_taken_anywhere_on_the_line() -> None:
    """They and their values move to the front; what follows ``--`` is left alone."""
    given = ["show", "r", "--bootstrap", "b:1", "--json", "--set=x=1", "--follow", "--", "--json"]
    assert hoisted(given) == [
        "--bootstrap", "b:1", "--json", "--set=x=1", "show", "r", "--follow", "--", "--json",
    ]  # fmt: skip
    assert hoisted(["runs", "--config"]) == ["--config", "runs"]
    assert parsed_set(["a=1", "kafka.x=y=z"]) == {"a": "1", "kafka.x": "y=z"}
    with pytest.raises(SettingInvalid):
        parsed_set(["nothing"])


def test_settings_are_shown_with_their_origin_and_without_secrets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File, environment and flags are each named; a key given never appears."""
    (tmp_path / "perdure.toml").write_text('namespace = "of-the-file"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_ANTHROPIC_API_KEY", "sk-hush")
    monkeypatch.delenv("PERDURE_BOOTSTRAP", raising=False)
    code, out, _ = run(
        capsys, "config", "show", "--json", "--set", "kafka.sasl.password=hush", "--bootstrap", "b:1"
    )
    assert code == 0
    rows = {row["name"]: row for row in map(json.loads, out.splitlines())}
    assert rows["namespace"] == {
        "name": "namespace", "value": "of-the-file", "source": "file", "where": "perdure.toml",
    }  # fmt: skip
    assert (rows["bootstrap"]["value"], rows["bootstrap"]["source"]) == ("b:1", "flag")
    assert rows["anthropic_api_key"]["where"] == "PERDURE_ANTHROPIC_API_KEY"
    assert rows["kafka.sasl.password"]["value"] == "********"
    assert "hush" not in out
    _, out, _ = run(capsys, "config", "show", "--json", "--set", "bootstrap=s:1", "--set", "log_level=debug")
    assert '"value": "s:1", "source": "flag"' in out
    assert '"value": "debug", "source": "flag"' in out
    code, out, _ = run(capsys, "config", "show")
    assert code == 0
    assert "hush" not in out


def test_an_error_is_a_message_a_remedy_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback: to a person in two lines on standard error, to a program as JSON on standard output."""
    code, out, err = run(capsys, "worker", "--role", "tool-executor")
    assert (code, out) == (3, "")
    assert "[app_missing]" in err
    assert "--app module:object" in err
    assert "Traceback" not in err
    code, out, _ = run(capsys, "config", "show", "--set", "no_such=1", "--json")
    assert code == 2
    assert json.loads(out)["error"]["code"] == "setting_unknown"


def test_exit_codes_say_what_the_caller_must_do() -> None:
    """2: change the input; 3: mend the cause; 4: try again."""
    assert [exit_code_of(error()) for error in (RecordTooLarge, LogMisuse, Unavailable, Fenced)] == [
        2,
        3,
        4,
        4,
    ]


def test_schemas_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Every record has a fingerprint; a name prints its schema; a wrong name lists the right ones."""
    code, out, _ = run(capsys, "schemas", "--json")
    assert code == 0
    names = {json.loads(line)["record"] for line in out.splitlines()}
    assert {"Command", "Event", "Outcome"} <= names
    code, out, _ = run(capsys, "schemas", "event")
    assert (code, json.loads(out)["name"]) == (0, "Event")
    code, _, err = run(capsys, "schemas", "nothing")
    assert code == 2
    assert "Outcome" in err


def test_records_are_printed_with_the_json_they_hold() -> None:
    """Bytes that hold JSON are unfolded, others are shown in hexadecimal; the body's kind is named."""
    told = plain(Event("r", 1, 2, RunCompleted(b'{"a":[1]}', "end_turn")))
    assert told["body"] == {"type": "RunCompleted", "output": {"a": [1]}, "stop_reason": "end_turn"}
    assert plain({"x": b"\xff\x00"}) == {"x": "ff00"}


def test_the_token_key_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    """Without a setting a random key is kept in the state directory, readable by its owner alone."""
    settings = Settings(state_dir=tmp_path, namespace="n")
    key = token_key(settings, SystemEntropy())
    assert len(key) == 32
    assert token_key(settings, SystemEntropy()) == key
    (path,) = (tmp_path / "n").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    given = Settings(state_dir=tmp_path, namespace="n", approval_token_key=Secret("k"))
    assert token_key(given, SystemEntropy()) == b"k"


def test_older_token_keys_are_a_list() -> None:
    """With commas between; none by default."""
    assert Settings(approval_token_keys_older=Secret("one, two,")).token_keys_older == (b"one", b"two")
    assert Settings().token_keys_older == ()


HEAVY = ("confluent_kafka", "anthropic", "rocksdict", "faust", "fastavro", "jsonschema", "typer", "rich")


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import perdure", set[str]()),
        ("from perdure import Agent, tool, reconciler, ToolContext, NotExecuted", set[str]()),
        ("from perdure import Client", set[str]()),
        ("import perdure.console.main", {"typer", "rich"}),
    ],
)
def test_light_things_load_no_heavy_client(code: str, allowed: set[str]) -> None:
    """Importing the package, declaring agents and ``--help`` load no Kafka client, RocksDB or model SDK."""
    program = f"import sys\n{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert set(answer.stdout.split()) <= allowed


def test_the_facade_offers_what_it_names() -> None:
    """Every name of ``__all__`` can be had, and no other is made up."""
    import perdure

    assert [name for name in perdure.__all__ if not hasattr(perdure, name)] == []
    with pytest.raises(AttributeError):
        perdure.nothing  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnusedExpression]


@pytest.fixture
def run_with_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run in the log whose only call has its result in a folder; the command line reads both."""
    ref = FolderBlobs(tmp_path / "blobs").put("r1", b"all of it\0", TEXT)
    done = ToolCompleted(1, "c1", 1, b'"all"', is_error=False, source=ResultSource.EXECUTED, blob=ref)
    events = [Event("r1", 1, 1, done)]
    monkeypatch.setattr(Client, "events", lambda *_, **__: iter(events))
    monkeypatch.setenv("PERDURE_BLOB_STORE", str(tmp_path / "blobs"))
    return ref.uri


def test_a_blob_is_written_as_it_is(
    run_with_blob: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """By its uri, or by run and call; to standard output byte for byte, or to a file."""
    for given in ([run_with_blob], ["r1", "c1"]):
        with pytest.raises(SystemExit) as ended:
            main(["blob", "get", *given])
        assert not ended.value.code
        assert capfdbinary.readouterr().out == b"all of it\0"
    with pytest.raises(SystemExit) as ended:
        main(["blob", "get", run_with_blob, "-o", str(tmp_path / "out")])
    assert not ended.value.code
    assert (tmp_path / "out").read_bytes() == b"all of it\0"


def test_a_blob_that_is_none_is_an_error_with_a_remedy(
    run_with_blob: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such call, no such blob, no reference, no store: each says what to do."""
    assert "blob_missing" in run(capsys, "blob", "get", "r1", "c2")[2]
    assert (
        "blob_missing"
        in run(capsys, "blob", "get", f"{run_with_blob[:-1]}{int(run_with_blob[-1] == '0')}")[2]
    )
    code, _, err = run(capsys, "blob", "get", "/etc/passwd")
    assert (code, "invalid_blob_reference" in err) == (2, True)
    monkeypatch.delenv("PERDURE_BLOB_STORE")
    code, _, err = run(capsys, "blob", "get", run_with_blob)
    assert (code, "blob_store_unusable" in err) == (3, True)


def test_show_names_the_blob_of_a_result(run_with_blob: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the command that fetches it; programs get the uri."""
    assert "(10 bytes, whole: perdure blob get r1 c1)" in run(capsys, "show", "r1")[1]
    assert run_with_blob in run(capsys, "--json", "show", "r1")[1]


@pytest.mark.parametrize("command", [["submit", "a", "hello"], ["resume", "r1"]])
def test_a_budget_is_given_on_the_command_line(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of each kind, and dollars to the last nano-dollar; nonsense is refused."""
    given: list[Budget | None] = []
    told = Event("r1", 1, 1, RunCompleted(b'"x"', "end_turn"))

    def take(*_: object, budget: Budget | None = None, **__: object) -> str:
        given.append(budget)
        return "r1"

    monkeypatch.setattr(Client, command[0], take)
    monkeypatch.setattr(Client, "answered", lambda *_, **__: told)
    options = ["--budget-input-tokens", "10", "--budget-output-tokens", "20", "--budget-usd", "0.000000051"]
    assert run(capsys, *command, *options)[0] == 0
    assert (
        run(capsys, *command, "--budget-cache-read-tokens", "5", "--budget-cache-creation-tokens", "6")[0]
        == 0
    )
    assert run(capsys, *command)[0] == 0
    assert given == [
        Budget(input_tokens=10, output_tokens=20, cost_nano_usd=51),
        Budget(cache_read_tokens=5, cache_creation_tokens=6),
        None,
    ]
    for wrong in ("nothing", "-1", "0", "NaN", "0.0000000001"):
        assert run(capsys, *command, "--budget-usd", wrong)[0] == 2
    assert len(given) == 3


def test_a_refused_submit_is_shown_with_its_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no run to show; what is known of its command is said instead."""
    source = LogPosition("perdure.run-commands", 0, 7)
    letter = DeadLetter(source, "price_unknown", "the price of m is not known", b"r1", b"", b"", 0, 1)
    monkeypatch.setattr(Client, "events", lambda *_, **__: iter(()))
    monkeypatch.setattr(Client, "refusal", lambda *_: letter)
    code, _, err = run(capsys, "show", "r1")
    assert code == 2
    assert "price_unknown: the price of m is not known" in err
    monkeypatch.setattr(Client, "refusal", lambda *_: None)
    assert "unknown_run" in run(capsys, "show", "r1")[2]
