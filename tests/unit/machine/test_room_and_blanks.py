"""What is stored can be sent: nothing blank, no impossible name, no more than a record carries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.processors.machine.room import HEAD_BYTES_MIN, RESULTS_BYTES_MAX, TAIL_BYTES_MAX, TEXTS_BYTES_MAX
from perdure.schemas import results as rs
from perdure.schemas.commands import Cancel, Resume, Signal, Submit
from perdure.schemas.values import Verdict


@pytest.mark.parametrize("message", ["", " ", "\n\t"])
def test_blank_messages_are_rejected(running: Any, message: str) -> None:
    """A signal and a resume say something or nothing, never white space."""
    running.command(Signal(message))
    assert running.last.events[0].body.reason == "empty_message"
    running.command(Cancel("enough"))
    running.command(Resume(message))
    assert running.last.events[0].body.reason == "empty_message"
    assert running.run.state == "cancelled"


def test_messages_that_no_request_could_carry_are_rejected(running: Any) -> None:
    """What waits for the next request is bounded in all, escapes included; less is still taken."""
    running.command(Signal('"' * (TEXTS_BYTES_MAX // 2)))
    assert running.last.events[0].body.reason == "message_too_large"
    running.command(Signal("x" * (TEXTS_BYTES_MAX // 2)))
    running.command(Cancel("enough"))
    running.command(Resume("y" * (TEXTS_BYTES_MAX // 2)))
    assert running.last.events[0].body.reason == "message_too_large"
    running.command(Resume("short"))
    assert running.kinds[0] == "RunResumed"


def test_a_turn_that_is_resumed_again_and_again_stays_within_a_record(running: Any) -> None:
    """Each resume adds its message to the same request; the one too many is rejected."""
    reasons: set[str] = set()
    for _ in range(30):
        running.command(Cancel("enough"))
        running.command(Resume("z" * (TEXTS_BYTES_MAX - 1_000)))
        if running.kinds == ["CommandRejected"]:
            reasons.add(running.last.events[0].body.reason)
            break
    assert reasons == {"message_too_large"}
    assert sum(map(len, running.run.tail)) <= TAIL_BYTES_MAX
    running.command(Resume())
    assert running.kinds[0] == "RunResumed"


@pytest.mark.parametrize("is_text", [True, False], ids=["text", "blocks"])
def test_results_of_one_turn_share_their_room(running: Any, is_text: bool) -> None:
    """The first takes what it needs; what is left, or a head at least, is for those that come later."""
    uses = [{"type": "tool_use", "id": f"t1{n}", "name": "look", "input": {"n": n}} for n in range(4)]
    running.reply(*uses)
    value = '"' * 400_000
    image = {"type": "image", "source": {"data": value[300_000:]}}
    content = json.dumps(value if is_text else [{"type": "text", "text": value[:300_000]}, image]).encode()
    for call in uses:
        running.tool_result(call["id"], rs.Completed(content))
    told = [block["content"] for block in running.last_message()["content"]]
    assert sum(len(json.dumps(each)) for each in told) <= RESULTS_BYTES_MAX + 4 * HEAD_BYTES_MIN
    assert told[0] == json.loads(content)
    assert "[cut: the result has" in told[3]
    assert len(told[3]) > HEAD_BYTES_MIN // 4


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'" "', "(no output)"),
        (b"[]", "(no output)"),
        (b'[{"type":"text","text":""}]', "(no output)"),
        (b'[{"type":"text","text":""},{"type":"text","text":"x"}]', [{"type": "text", "text": "x"}]),
        (b'[{"type":"text"}]', "(no output)"),
        (b"7", "7"),
        (b'{"b":1,"a":[2]}', '{"a":[2],"b":1}'),
        (b'[1,"x"]', '[1,"x"]'),
    ],
)
def test_a_result_is_a_text_or_blocks_and_never_blank(running: Any, content: bytes, told: object) -> None:
    """Whoever wrote it, what the model is sent is what the Messages API takes."""
    running.ask_tools("look")
    running.tool_result("t10", rs.Completed(content))
    assert running.last_message()["content"][0]["content"] == told


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, None])
def test_an_impossible_tool_name_is_brought_into_the_alphabet(running: Any, name: object) -> None:
    """The call is answered with an error, and what is sent back of it is taken."""
    running.reply({"type": "tool_use", "id": "a", "name": name, "input": {}})
    stored = json.loads(running.messages[1])["content"][0]["name"]
    assert stored in {"unnamed", "a_b", "x" * 64}
    assert running.last_message()["content"][0]["is_error"]


def test_a_name_that_becomes_a_tools_name_is_still_not_that_tool(make_driver: Any) -> None:
    """Only the exact name calls a tool, whatever is left of another one."""
    driver = make_driver()
    driver.submit()
    driver.reply({"type": "tool_use", "id": "a", "name": "look\N{SNOWMAN}"[:4] + "\0", "input": {}})
    assert "ToolDispatched" not in driver.kinds


@pytest.mark.parametrize("block", [{}, {"type": 7}, {"text": "x"}])
def test_a_block_without_a_type_makes_the_reply_malformed(running: Any, block: dict[str, Any]) -> None:
    """It could never be sent back; the turn is asked again."""
    running.reply(block)
    assert running.last.events[0].body.code == "malformed_reply"


def test_a_blank_reason_for_giving_up_is_replaced(running: Any) -> None:
    """The model is told something that it can use."""
    running.ask_tools("wire")
    running.claim("t10")
    running.tool_result("t10", rs.Suspect())
    running.verdict("t10", Verdict.GIVE_UP, message="  ")
    assert "could not be found out" in running.last_message()["content"][0]["content"]


@pytest.mark.parametrize("data", [b'" "', b"[{}]", b'[{"type":"text","text":"\\n"}]', b'[{"type":"text"}]'])
def test_an_input_that_says_nothing_is_refused(driver: Any, data: bytes) -> None:
    """It could only become a message that the provider refuses."""
    driver.command(Submit("a", data))
    assert driver.last.outputs[0].code == "invalid_input"
