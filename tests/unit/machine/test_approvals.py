"""Approvals: which calls need one, for how long, what a decision is bound to, and why one does not count."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.processors.machine.inputs import MachineSettings
from perdure.processors.machine.requests import idempotency_key
from perdure.processors.machine.tokens import TokenKeys, id_of, token_fault
from perdure.schemas import events as ev
from perdure.schemas import json_schema
from perdure.schemas import results as rs
from perdure.schemas.approval_rule import ApprovalRule
from perdure.schemas.commands import Cancel, Decide, Resume
from perdure.schemas.definition import AgentDefinition, ToolDefinition
from perdure.schemas.outputs import Approval
from perdure.schemas.recipient import digest_of, recipient_of
from perdure.schemas.requests import ToolRequest
from perdure.schemas.values import DeclineReason, Effect, ExecutorKind, PendingKind, RunState, Verdict

PAY = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}},
    "required": ["amount"],
}
LARGE = {"properties": {"amount": {"minimum": 100}}}


def payer(**changes: Any) -> ToolDefinition:
    settings: dict[str, Any] = {"effect": Effect.NON_IDEMPOTENT, "timeout_ms": 1_000, "needs_approval": True}
    return ToolDefinition("pay", "pays", PAY, **(settings | changes))


@pytest.fixture
def asked(make_driver: Callable[..., Any], make_agent: Callable[..., Any]) -> Callable[..., Any]:
    """A run whose model has called ``pay`` with these arguments, under this tool and agent."""

    def start(
        arguments: dict[str, Any] | None = None,
        tool: ToolDefinition | None = None,
        settings: MachineSettings | None = None,
        keys: TokenKeys | None = None,
        **changes: Any,
    ) -> Any:
        tools = (tool or payer(), *(each for each in make_agent().tools if each.name != "buy"))
        driver = make_driver(make_agent(tools=tools, **changes), settings)
        driver.token_keys = keys or driver.token_keys
        driver.submit()
        given = {"amount": 5, "to": "Ada"} if arguments is None else arguments
        driver.reply({"type": "tool_use", "id": "p", "name": "pay", "input": given})
        return driver

    return start


def reason_of(driver: Any) -> str | None:
    first = driver.last.events[0].body
    return first.reason if isinstance(first, ev.CommandRejected) else None


# ---- who is asked ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("amount", "waits"), [(99, False), (100, True), ("many", True)])
def test_a_condition_asks_only_about_arguments_that_match_it(
    asked: Callable[..., Any], amount: Any, waits: bool
) -> None:
    """The rest is dispatched at once; ``minimum`` says nothing about a text, so that one matches."""
    driver = asked({"amount": amount}, payer(approval_condition=LARGE))
    assert (driver.run.state is RunState.AWAITING_APPROVAL) == waits


@pytest.mark.parametrize(
    ("rule", "waits"),
    [
        (ApprovalRule(), True),
        (ApprovalRule("pay"), True),
        (ApprovalRule("p*"), True),
        (ApprovalRule("P*"), False),
        (ApprovalRule("look"), False),
        (ApprovalRule(effect=Effect.NON_IDEMPOTENT), True),
        (ApprovalRule(effect=Effect.READ_ONLY), False),
        (ApprovalRule("pay", arguments=LARGE), False),
        (ApprovalRule(arguments={"properties": {"to": {"const": "Ada"}}}), True),
        (ApprovalRule("pay", Effect.READ_ONLY, {}), False),
    ],
)
def test_a_rule_of_the_agent_asks_where_all_it_names_fits(
    asked: Callable[..., Any], rule: ApprovalRule, waits: bool
) -> None:
    """Name or glob, effect class, arguments; beside what the tool says of itself."""
    driver = asked(tool=payer(needs_approval=False), approvals=(ApprovalRule("look"), rule))
    assert (driver.run.state is RunState.AWAITING_APPROVAL) == waits


@pytest.mark.parametrize("condition", [{"$ref": "#/$defs/x"}, {"not": {"$ref": "#"}}, {"type": "nothing"}])
def test_a_condition_that_can_not_be_evaluated_asks(
    asked: Callable[..., Any], condition: dict[str, Any]
) -> None:
    """Such a definition may stand in the log; the machine never raises for it, and takes no risk."""
    assert asked(tool=payer(approval_condition=condition)).run.state is RunState.AWAITING_APPROVAL


def test_without_a_validator_every_condition_asks(
    asked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was installed without jsonschema asks too often rather than too seldom."""

    def missing(_: bytes) -> json_schema.Check:
        raise json_schema.ValidatorMissing

    monkeypatch.setattr(json_schema, "_compiled", missing)
    driver = asked({"amount": 1}, payer(approval_condition=LARGE))
    assert driver.run.state is RunState.AWAITING_APPROVAL


def test_the_question_shows_who_would_carry_the_call_out(asked: Callable[..., Any]) -> None:
    """Executor kind, server and schema hash stand in the approval record."""
    tool = payer(executor=ExecutorKind.MCP, server="bank http://bank/mcp", server_schema="f" * 64)
    driver = asked(tool=tool)
    (approval,) = driver.requests(Approval)
    assert approval.recipient == recipient_of(tool)
    assert approval.recipient.server == "bank http://bank/mcp"


@pytest.mark.parametrize(
    "other",
    [
        payer(server="other"),
        payer(executor=ExecutorKind.HTTP),
        payer(server_schema="0"),
        ToolDefinition("pay", "pays", {"type": "object"}, Effect.NON_IDEMPOTENT),
        ToolDefinition("pay", "pays twice", PAY, Effect.NON_IDEMPOTENT),
    ],
)
def test_another_recipient_has_another_digest(other: ToolDefinition) -> None:
    """Kind, server, what the server says, input schema, description: each counts."""
    assert digest_of(recipient_of(other)) != digest_of(recipient_of(payer()))


def test_an_approved_call_carries_the_digest_of_what_was_shown(asked: Callable[..., Any]) -> None:
    """The executor can refuse a call whose tool is no longer the one that was approved."""
    driver = asked()
    driver.verdict("p", Verdict.APPROVE)
    (request,) = driver.requests(ToolRequest)
    assert request.recipient == digest_of(recipient_of(payer()))


def test_a_call_nobody_was_asked_about_carries_none(running: Any) -> None:
    """Nothing was approved, so nothing is compared."""
    running.ask_tools("look")
    assert running.requests(ToolRequest)[0].recipient == b""


# ---- for how long ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool_ms", "agent_ms", "worker_ms", "expected_ms"),
    [(7, 8, 9, 7), (None, 8, 9, 8), (None, None, 9, 9), (None, None, None, None)],
)
def test_the_nearest_time_out_counts(
    asked: Callable[..., Any],
    tool_ms: int | None,
    agent_ms: int | None,
    worker_ms: int | None,
    expected_ms: int | None,
) -> None:
    """The tool's, else the agent's, else the worker's; else a person may take for ever."""
    driver = asked(
        tool=payer(approval_timeout_ms=tool_ms),
        approval_timeout_ms=agent_ms,
        settings=MachineSettings(approval_timeout_ms=worker_ms),
    )
    deadline_ms = driver.run.pending[0].deadline_ms
    assert (deadline_ms and deadline_ms - driver.now_ms) == expected_ms


def test_a_doubt_does_not_time_out_by_the_tools_approval_time(asked: Callable[..., Any]) -> None:
    """Only a question of the tool's author has the author's time limit."""
    driver = asked(tool=payer(approval_timeout_ms=10_000))
    driver.verdict("p", Verdict.APPROVE)
    driver.claim("p")
    driver.tool_result("p", rs.Suspect())
    assert driver.run.pending[0].kind is PendingKind.AMBIGUITY
    assert driver.run.pending[0].deadline_ms is None


def test_a_time_out_keeps_what_siblings_found_and_tells_the_rest_honestly(
    make_driver: Callable[..., Any], make_agent: Callable[..., Any]
) -> None:
    """One call was not answered by a person, one is done, one under way: each has an honest result."""
    driver = make_driver(make_agent(), MachineSettings(approval_timeout_ms=60_000))
    driver.submit()
    driver.ask_tools("buy", "look", "put")
    driver.tool_result("t11", rs.Completed(b'"seen"'))
    driver.timer()
    assert (driver.run.state, driver.run.closed.code) == (RunState.TIMED_OUT, "approval")
    driver.command(Resume())
    bought, seen, put = driver.last_message()["content"][:3]
    assert "not executed" in bought["content"]
    assert seen["content"] == "seen"
    assert "may or may not" in put["content"]


# ---- edited arguments --------------------------------------------------------------------------------------


def test_approve_with_other_arguments_executes_those_and_tells_the_model(asked: Callable[..., Any]) -> None:
    """Canonical, hashed, recorded with who; same key; the assistant's message stays byte for byte."""
    driver = asked()
    said = driver.messages[-1]
    driver.verdict("p", Verdict.APPROVE, arguments=b'{ "to": "Bob",  "amount": 1.0 }')
    edited = b'{"amount":1,"to":"Bob"}'
    recorded = driver.last.events[0].body
    assert (recorded.arguments, recorded.decided_by) == (edited, "someone")
    assert recorded.arguments_sha256 == hashlib.sha256(edited).digest()
    (request,) = driver.requests(ToolRequest)
    assert request.arguments == edited
    assert request.idempotency_key == idempotency_key("run-1", "p")
    driver.claim("p")
    driver.tool_result("p", rs.Completed(b'"paid"'))
    assert driver.messages[-2] == said
    result, told = driver.last_message()["content"]
    assert result["content"] == "paid"
    assert edited.decode() in told["text"]
    assert "other arguments" in told["text"]


def test_arguments_that_are_not_changed_are_no_edit(asked: Callable[..., Any]) -> None:
    """A form that sends back what it was given says no more than approve."""
    driver = asked()
    driver.verdict("p", Verdict.APPROVE, arguments=b'{"to":"Ada","amount":5}')
    recorded = driver.last.events[0].body
    assert (recorded.arguments, recorded.told) == (None, None)
    assert driver.requests(ToolRequest)[0].arguments == b'{"amount":5,"to":"Ada"}'


def test_edited_arguments_hold_through_attempts_doubts_and_a_resume(asked: Callable[..., Any]) -> None:
    """What is asked about, tried again and told after a cancel is the call as it was approved."""
    driver = asked()
    driver.verdict("p", Verdict.APPROVE, arguments=b'{"amount":1}')
    driver.claim("p")
    driver.tool_result("p", rs.Suspect())
    (approval,) = driver.requests(Approval)
    assert (approval.kind, approval.arguments) == (PendingKind.AMBIGUITY, b'{"amount":1}')
    driver.verdict("p", Verdict.DID_NOT_RUN)
    assert driver.requests(ToolRequest)[0].arguments == b'{"amount":1}'
    driver.tool_result("p", rs.Declined(DeclineReason.CANCELLED))
    assert '{"amount":1}' in driver.last_message()["content"][1]["text"]


# ---- why a decision does not count -------------------------------------------------------------------------


def stale_token(driver: Any) -> str:
    """The token of an approval that was given, while a person is asked about the same call again."""
    token: str = driver.run.pending[0].token
    driver.verdict("p", Verdict.APPROVE)
    driver.claim("p")
    driver.tool_result("p", rs.Suspect())
    return token


def doubt(driver: Any) -> None:
    stale_token(driver)


def approved(driver: Any) -> None:
    driver.verdict("p", Verdict.APPROVE)


def rejected(driver: Any) -> None:
    driver.verdict("p", Verdict.REJECT)


def cancelled(driver: Any) -> None:
    driver.command(Cancel("x"))


def expired(driver: Any) -> None:
    driver.now_ms += 60_000


def timed_out(driver: Any) -> None:
    driver.timer()


def completed(driver: Any) -> None:
    rejected(driver)
    driver.say("done")


def nothing(driver: Any) -> None:
    pass


A, R = Verdict.APPROVE, Verdict.REJECT
FAULTS: list[tuple[str, Callable[[Any], None], dict[str, Any], str]] = [
    ("forged: no token at all", nothing, {"token": ""}, "token_forged"),
    ("forged: not of our form", nothing, {"token": "\N{SNOWMAN}\ud800"}, "token_forged"),
    ("forged: our key, made up", nothing, {"token": f"{id_of(b'key')}.n.t.m"}, "token_forged"),
    ("unknown key", nothing, {"token": "00000000.n.t.m"}, "token_key_unknown"),
    ("expired, timer not yet fired", expired, {}, "decision_expired"),
    ("expired, run timed out", timed_out, {}, "decision_expired"),
    ("repeated while it takes effect", approved, {}, "not_pending"),
    ("repeated after its effect", rejected, {}, "already_decided"),
    ("after cancel", cancelled, {}, "run_cancelled"),
    ("after the end", completed, {}, "run_terminal"),
    ("a doubt is not approved", doubt, {}, "verdict_not_allowed"),
    ("an approval is no doubt", nothing, {"verdict": Verdict.RAN}, "verdict_not_allowed"),
    ("result that is no JSON", doubt, {"verdict": Verdict.RAN, "result": b"{"}, "invalid_result"),
    ("result of no blocks", doubt, {"verdict": Verdict.RAN, "result": b"[1]"}, "invalid_result"),
    ("arguments with reject", nothing, {"verdict": R, "arguments": b"{}"}, "arguments_not_allowed"),
    ("arguments that are no JSON", nothing, {"arguments": b"{"}, "invalid_arguments"),
    ("arguments that are no object", nothing, {"arguments": b"[]"}, "invalid_arguments"),
    ("arguments against the schema", nothing, {"arguments": b'{"amount":"x"}'}, "invalid_arguments"),
    ("arguments that are too large", nothing, {"arguments": b'{"amount":1,"x":"%s"}' % (b"x" * 300_000)},
     "arguments_too_large"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "given", "reason"), [row[1:] for row in FAULTS], ids=[r[0] for r in FAULTS]
)
def test_each_decision_that_does_not_count_has_its_own_stable_reason(
    asked: Callable[..., Any], before: Callable[[Any], None], given: dict[str, Any], reason: str
) -> None:
    """It is recorded with the reason, and nothing else changes; the open question can still be decided."""
    driver = asked(settings=MachineSettings(approval_timeout_ms=60_000))
    first = driver.run.pending[0].token
    before(driver)
    state, pending = driver.run, driver.run.pending
    token = {"token": first} if driver.run.pending_for("p") is None else {}
    driver.verdict("p", **({"verdict": A} | token | given))
    assert driver.kinds == ["CommandRejected"]
    assert reason_of(driver) == reason
    assert replace(driver.run, seq=0, updated_ms=0) == replace(state, seq=0, updated_ms=0)
    assert driver.run.pending == pending


def test_a_token_of_an_earlier_question_about_the_call_is_a_mismatch(asked: Callable[..., Any]) -> None:
    """It was given out, but for something else than what is asked now."""
    driver = asked()
    token = stale_token(driver)
    driver.verdict("p", Verdict.DID_NOT_RUN, token=token)
    assert reason_of(driver) == "token_mismatch"


@pytest.mark.parametrize(
    "changes",
    [{"arguments": b'{"amount":1000000}'}, {"tool": "look"}, {"call_id": "q"}, {"recipient": b"other"}],
)
def test_a_token_does_not_hold_for_anything_but_what_was_shown(
    asked: Callable[..., Any], changes: dict[str, Any]
) -> None:
    """Tool, call, recipient and arguments are part of it, whatever the log says of the question."""
    run = asked().run
    (call,), token = run.calls, run.pending[0].token
    keys = TokenKeys(b"key")
    assert token_fault(keys, run, call, token, token) is None
    assert token_fault(keys, run, replace(call, **changes), token, token) == "token_mismatch"
    assert token_fault(keys, replace(run, run_id="run-2"), call, token, token) == "token_mismatch"


def test_a_token_of_another_call_or_run_is_a_mismatch(running: Any, make_driver: Callable[..., Any]) -> None:
    """Each question has its own."""
    running.ask_tools("buy", "buy")
    tokens = [pending.token for pending in running.run.pending]
    running.verdict("t10", A, token=tokens[1])
    assert reason_of(running) == "token_mismatch"
    running.verdict("nobody", A, token=tokens[0])
    assert reason_of(running) == "unknown_call"


def test_a_schema_that_can_not_be_applied_takes_no_edited_arguments(asked: Callable[..., Any]) -> None:
    """The machine says so, and the plain approve stays possible."""
    tool = replace(payer(), input_schema={"type": "object", "properties": {"amount": {"$ref": "#/$defs/x"}}})
    driver = asked(tool=tool)
    driver.verdict("p", A, arguments=b'{"amount":1}')
    assert reason_of(driver) == "invalid_arguments"
    driver.verdict("p", A)
    assert reason_of(driver) is None


# ---- keys --------------------------------------------------------------------------------------------------


def test_an_older_key_is_taken_as_long_as_it_is_configured(asked: Callable[..., Any]) -> None:
    """Rotation: new questions have the new key's id, open ones stay decidable."""
    driver = asked(keys=TokenKeys(b"one", is_strict=True))
    assert driver.run.pending[0].token.startswith(id_of(b"one"))
    driver.token_keys = TokenKeys(b"two", (b"zero", b"one"), is_strict=True)
    driver.verdict("p", A)
    assert driver.kinds[0] == "DecisionRecorded"


def test_a_question_whose_key_is_gone_is_asked_again_under_the_current_one(
    asked: Callable[..., Any],
) -> None:
    """The decision is refused; the new question keeps its deadline and can be decided."""
    driver = asked(
        keys=TokenKeys(b"one", is_strict=True), settings=MachineSettings(approval_timeout_ms=60_000)
    )
    deadline_ms = driver.run.pending[0].deadline_ms
    driver.now_ms += 5
    driver.token_keys = TokenKeys(b"two", is_strict=True)
    driver.verdict("p", A)
    assert driver.kinds == ["CommandRejected", "ApprovalRequested"]
    assert reason_of(driver) == "token_key_unknown"
    (pending,) = driver.run.pending
    assert pending.deadline_ms == deadline_ms
    assert pending.token.startswith(id_of(b"two"))
    driver.verdict("p", A)
    assert driver.kinds == ["DecisionRecorded", "ToolDispatched"]


def test_keys_that_each_machine_made_for_itself_do_not_part_them(asked: Callable[..., Any]) -> None:
    """Without a configured key a token of another machine's is compared with the one in the log."""
    driver = asked(keys=TokenKeys(b"one"))
    token = driver.run.pending[0].token
    driver.token_keys = TokenKeys(b"two")
    driver.verdict("p", A, token=f"{token}0")
    assert reason_of(driver) == "token_key_unknown"
    driver.verdict("p", A)
    assert driver.kinds == ["DecisionRecorded", "ToolDispatched"]


def test_keys_do_not_show(asked: Callable[..., Any]) -> None:
    """Not in what is printed of them, and not in a token."""
    assert "secret" not in repr(TokenKeys(b"secret", (b"secret",)))


def test_any_kafka_client_can_decide(asked: Callable[..., Any]) -> None:
    """A plain record with call id, verdict and token is a decision like any other."""
    driver = asked()
    token = driver.run.pending[0].token
    driver.command(Decide("p", A, token, "an inbox", arguments=json.dumps({"amount": 2}).encode()))
    assert driver.kinds == ["DecisionRecorded", "ToolDispatched"]


def test_definition_with_rules_survives_its_encoding(make_agent: Callable[..., AgentDefinition]) -> None:
    """Rules, conditions and recipients are part of what a run is pinned to."""
    from perdure.schemas.definition import decode_definition, encode_definition

    rules = (ApprovalRule("look"), ApprovalRule("p*", Effect.NON_IDEMPOTENT, LARGE))
    tool = payer(approval_condition=LARGE, approval_timeout_ms=5, executor=ExecutorKind.HTTP, server="POST x")
    definition = make_agent(
        tools=(tool, *make_agent().tools), approvals=rules, approval_timeout_ms=APPROVAL_MS
    )
    assert decode_definition(encode_definition(definition)[1]) == definition


APPROVAL_MS = 86_400_000
