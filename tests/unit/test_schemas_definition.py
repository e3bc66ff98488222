"""Agent definitions: one hash per content, checked before a run can be pinned to them."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.schemas.approval_rule import ApprovalRule
from perdure.schemas.canonical import canonical_json
from perdure.schemas.codec import Undecodable
from perdure.schemas.definition import (
    AgentDefinition,
    InvalidDefinition,
    ToolDefinition,
    UndecodableDefinition,
    decode_definition,
    encode_definition,
    open_definition,
)
from perdure.schemas.json_schema import InvalidSchema, ValidatorMissing, check_schema
from perdure.schemas.limits import JSON_DEPTH_STORED_MAX, PAYLOAD_BYTES_MAX
from perdure.schemas.outputs import DefinitionRecord
from perdure.schemas.values import Effect

OBJECT: dict[str, Any] = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
LOOK = ToolDefinition("find", "Finds a message.", OBJECT, Effect.READ_ONLY, is_hidden=True)
SEND = ToolDefinition("send", "Sends a message.", OBJECT, Effect.NON_IDEMPOTENT, reconcile="find")
MAILER = AgentDefinition(
    "mailer", "1.0", "a-model", "Be brief.", (SEND, LOOK), parameters={"temperature": 0.5}
)


def test_round_trip() -> None:
    """A definition comes back equal from its body, whose SHA-256 is its digest."""
    digest, body = encode_definition(MAILER)
    assert decode_definition(body) == MAILER
    assert digest == hashlib.sha256(body).hexdigest()


def test_body_is_canonical() -> None:
    """The body is RFC 8785 JSON and says every field, so that a changed default changes no pinned run."""
    _, body = encode_definition(MAILER)
    assert canonical_json(json.loads(body)) == body
    assert set(json.loads(body)) == set(AgentDefinition.__struct_fields__)
    assert set(json.loads(body)["tools"][0]) == set(ToolDefinition.__struct_fields__)


def test_digest_ignores_key_order() -> None:
    """The order of keys in a schema or in parameters leaves the digest as it is; any content changes it."""
    turned = replace(SEND, input_schema=dict(reversed(OBJECT.items())))
    assert encode_definition(replace(MAILER, tools=(turned, LOOK))) == encode_definition(MAILER)
    other = replace(SEND, description="Sends a message!")
    assert encode_definition(replace(MAILER, tools=(other, LOOK)))[0] != encode_definition(MAILER)[0]


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


INVALID = {
    "an agent name with a slash": replace(MAILER, agent="a/b"),
    "an empty agent name": replace(MAILER, agent=""),
    "a version with a slash": replace(MAILER, version="1/2"),
    "a line end after the version": replace(MAILER, version="1\n"),
    "no model": replace(MAILER, model=""),
    "no turns": replace(MAILER, max_turns=0),
    "no tokens": replace(MAILER, max_tokens=0),
    "endless tokens": replace(MAILER, max_tokens=1 << 62),
    "no calls": replace(MAILER, tool_calls_per_turn_max=-1),
    "no time for the model": replace(MAILER, model_timeout_ms=0),
    "a parameter that perdure sets": replace(MAILER, parameters={"stream": False}),
    "a parameter that is no JSON": replace(MAILER, parameters={"temperature": float("nan")}),
    "a parameter of no JSON type": replace(MAILER, parameters={"temperature": object()}),
    "a parameter nested too deeply": replace(MAILER, parameters=deep(JSON_DEPTH_STORED_MAX + 1)),
    "a parameter nested without end": replace(MAILER, parameters=deep(100_000)),
    "an output schema that is none": replace(MAILER, output_schema={"type": "objekt"}),
    "too long a prompt": replace(MAILER, system="x" * PAYLOAD_BYTES_MAX),
    "two tools of one name": replace(MAILER, tools=(SEND, SEND, LOOK)),
    "a reconciling tool that is not there": replace(MAILER, tools=(SEND,)),
    "a reconciling tool that writes": replace(
        MAILER, tools=(SEND, replace(LOOK, effect=Effect.IDEMPOTENT_WRITE))
    ),
    "a reconciling tool that waits": replace(MAILER, tools=(SEND, replace(LOOK, needs_approval=True))),
    "a reconciling tool that is reconciled": replace(MAILER, tools=(SEND, replace(LOOK, reconcile="find"))),
    "a tool without a name": replace(MAILER, tools=(replace(LOOK, name=""),)),
    "a tool name with a dot": replace(MAILER, tools=(replace(LOOK, name="a.b"),)),
    "a tool name of another script": replace(MAILER, tools=(replace(LOOK, name="ü"),)),
    "a tool name too long": replace(MAILER, tools=(replace(LOOK, name="x" * 129),)),
    "no time for a tool": replace(MAILER, tools=(replace(LOOK, timeout_ms=0),)),
    "endless time for a tool": replace(MAILER, tools=(replace(LOOK, timeout_ms=1 << 40),)),
    "settling before the end": replace(MAILER, tools=(replace(LOOK, settle_ms=-1),)),
    "no attempts": replace(MAILER, tools=(replace(LOOK, attempts_max=0),)),
    "an input that is no object": replace(MAILER, tools=(replace(LOOK, input_schema={"type": "string"}),)),
    "an input of any type": replace(MAILER, tools=(replace(LOOK, input_schema={}),)),
    "an input schema that is none": replace(
        MAILER, tools=(replace(LOOK, input_schema={"type": "object", "required": "to"}),)
    ),
}


@pytest.mark.parametrize("definition", INVALID.values(), ids=INVALID)
def test_invalid(definition: AgentDefinition) -> None:
    """A definition no run could go on with is refused before it is published."""
    with pytest.raises(InvalidDefinition) as caught:
        encode_definition(definition)
    assert len(str(caught.value)) < 1000


def test_schema_that_reaches_outside() -> None:
    """A schema that would have to fetch a part of itself is refused; one that points inside is fine."""
    inside = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}},
        "$defs": {"x": {"type": "string"}},
    }
    check_schema(inside)
    with pytest.raises(InvalidSchema):
        check_schema({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/x.json"}}})
    with pytest.raises(InvalidSchema):
        check_schema({"type": "object", "allOf": [{"$dynamicRef": "x.json"}]})


def test_older_dialect() -> None:
    """A schema is judged by the dialect it names."""
    draft4 = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "object", "minProperties": 1}
    check_schema(draft4)
    with pytest.raises(InvalidSchema):
        check_schema(draft4 | {"required": []})  # draft 4 wants at least one


def test_without_jsonschema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where schemas can not be checked nothing is published unchecked."""
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ValidatorMissing, match=r"perdure\[worker\]"):
        encode_definition(MAILER)


@given(
    data=st.binary(max_size=40)
    | st.recursive(st.none(), st.lists).map(lambda value: json.dumps(value).encode())
)
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes(data: bytes) -> None:
    """Any bytes are a definition or a typed error and nothing else."""
    with pytest.raises(UndecodableDefinition):
        decode_definition(data)


def edited(**changes: Any) -> bytes:
    return canonical_json(json.loads(encode_definition(MAILER)[1]) | changes)


@pytest.mark.parametrize(
    "body",
    [
        edited(max_turns="many"),
        edited(tools=[{"name": "x"}]),
        edited(unknown=1),
        edited(parameters=[]),
        b'{"agent":"a","agent":"a","version":"1","model":"m"}',
    ],
)
def test_undecodable(body: bytes) -> None:
    """A body with a field of another type, missing, unknown or given twice is told as undecodable."""
    with pytest.raises(UndecodableDefinition):
        decode_definition(body)


def test_open() -> None:
    """A record is opened only if its digest, agent and version are those of its body."""
    digest, body = encode_definition(MAILER)
    record = DefinitionRecord("mailer", "1.0", digest, body, 0)
    assert open_definition(record) == MAILER
    for wrong in (
        replace(record, digest="0" * 64),
        replace(record, body=body + b" "),
        replace(record, agent="other"),
        replace(record, version="2.0"),
    ):
        with pytest.raises(Undecodable):
            open_definition(wrong)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"approvals": (ApprovalRule(""),)}, "stands for all"),
        ({"approvals": (ApprovalRule("sned"),)}, "none of the tools"),
        ({"approvals": (ApprovalRule("*", arguments={"type": 5}),)}, "schema of the approval rule"),
        ({"approval_timeout_ms": 0}, "approval_timeout_ms of the agent is 0"),
        ({"tools": (replace(SEND, approval_timeout_ms=-1), LOOK)}, "approval_timeout_ms of the tool send"),
        ({"tools": (replace(SEND, approval_condition={}), LOOK)}, "needs_approval is false"),
        (
            {"tools": (replace(SEND, needs_approval=True, approval_condition={"type": 5}), LOOK)},
            "approval_condition of the tool send",
        ),
    ],
)
def test_an_approval_policy_that_can_not_be_meant_is_refused(changes: dict[str, Any], told: str) -> None:
    """At publish: a run can not have its definition mended."""
    with pytest.raises(InvalidDefinition, match=told):
        encode_definition(replace(MAILER, **changes))


def test_an_approval_policy_is_published() -> None:
    """Globs may be for tools that are still to come; names are not."""
    rules = (ApprovalRule("new_*"), ApprovalRule("send", Effect.NON_IDEMPOTENT, {"required": ["to"]}))
    tools = (replace(SEND, needs_approval=True, approval_condition={}, approval_timeout_ms=1), LOOK)
    published = replace(MAILER, approvals=rules, approval_timeout_ms=1, tools=tools)
    assert decode_definition(encode_definition(published)[1]) == published
