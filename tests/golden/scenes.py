"""Histories that together hold every kind of record: lived in the test kit, one seed, the same each time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from perdure import Agent, agent_tool, reconciler, tool
from perdure.connectors.reconciler import Question, happened, unknown
from perdure.processors.machine.inputs import MachineSettings
from perdure.schemas.codec import encode
from perdure.schemas.commands import Decide, Fork, Submit
from perdure.schemas.definition import digest_of, encode_definition
from perdure.schemas.keys import ResultKey
from perdure.schemas.outputs import DefinitionRecord
from perdure.schemas.results import Lost, Result, ResultBody, Undecodable
from perdure.schemas.values import Budget, Provenance, Usage, Verdict
from perdure.testing import Asked, Reply, ScriptedModel, TestBed, calls, fails, says, use
from perdure.testing.script import Turn
from perdure.topics.table import TOPICS, Role

DAY_S: Final = 86_400
APPROVAL_S: Final = 3_600
DISPATCH_S: Final = 3_600
SCHEMA: Final[Mapping[str, Any]] = {"type": "object", "required": ["answer"]}
WHO: Final = Provenance("order-7", "tenant", (("team", "blue"),), None, "golden")

Rows = Iterator[tuple[str, bytes | None, bytes | None]]


class World:
    """What the tools of a scene do: some of it goes wrong, in an order that each scene sets."""

    def __init__(self) -> None:
        self.crash: Callable[[], None] = lambda: None
        self.asked = 0


def clerk(world: World) -> Agent:
    """An agent with a tool for each way in which a call can go."""

    @tool(effect="read_only")
    def look(n: int) -> str:
        """Look."""
        if n < 0:
            raise ValueError("less than nothing")
        return f"seen {n}"

    @tool(effect="idempotent_write")
    async def put(n: int) -> str:
        """Put, slowly."""
        await asyncio.sleep(30)
        return f"put {n}"

    @reconciler
    def find(question: Question) -> Any:
        """Find out; at first nothing can be told."""
        world.asked += 1
        return unknown("not yet") if world.asked == 1 else happened({"id": 7})

    @tool(effect="non_idempotent", reconcile=find)
    def send(n: int) -> str:
        """Send; the worker dies over it."""
        world.crash()
        return f"sent {n}"

    @tool(effect="non_idempotent")
    def wire(n: int) -> str:
        """Wire; nobody knows whether it went through."""
        raise ConnectionError(f"wire {n}")

    @tool(effect="non_idempotent", needs_approval=True)
    def buy(n: int) -> str:
        """Buy."""
        return f"bought {n}"

    return Agent(
        "clerk",
        model="m",
        system="Be brief.",
        max_turns=6,
        tools=[look, put, send, wire, buy],
        agents=[agent_tool("helper", description="Helps.")],
    )


HELPER: Final = Agent("helper", model="m")
FORMAL: Final = Agent("formal", model="m", output_schema=SCHEMA)
LATER: Final = Agent("later", model="m")


def script(asked: Asked) -> Turn:
    """By the run's id; a turn at a time."""
    family, _, suffix = asked.run_id.partition("~")
    if suffix.startswith("c."):
        return says("helped")
    if suffix:
        return says("a fork's end")
    turns = SCRIPTS.get(family)
    if turns is None:
        return says("done")
    return turns[min(asked.turn, len(turns)) - 1]


ONE_LOOK: Final = calls("I look.", use("look", "a", n=1))
SCRIPTS: Final[Mapping[str, tuple[Turn, ...]]] = {
    "plain": (calls(use("look", "a", n=1), use("look", "b", n=2)), says("done")),
    "loop": (calls(use("look", n=-1)),),
    "refused": (says(stop_reason="refusal"),),
    "doubt": (calls(use("wire", "a", n=1)), says("done")),
    "reconciled": (calls(use("send", "a", n=1)), says("done")),
    "approved": (calls(use("buy", "a", n=1)), says("done")),
    "rejected": (calls(use("buy", "a", n=1)), says("done")),
    "timed": (calls(use("buy", "a", n=1)), says("done")),
    "late": (calls(use("put", "a", n=1)), says("done")),
    "cut": (ONE_LOOK, says("done")),
    "signalled": (calls(use("put", "a", n=1)), says("done")),
    "family": (calls(use("helper", "a", input="help")), says("done")),
    "rich": (says("done", usage=Usage(9, 8, 7, 6)),),
    "poor": (calls(use("look", "a", n=1), usage=Usage(6_000, 100)), says("done")),
    "formal": (says("no JSON"), says('{"answer": 1}')),
    "garbled": (says("done"),),
    "expired": (ONE_LOOK, says("done")),
    "forgotten": (says("done"),),
}


def _lives(bed: TestBed, world: World) -> None:
    for name in SCRIPTS:
        if name not in {"late", "cut", "formal", "reconciled", "poor", "expired", "forgotten"}:
            bed.submit(f"Do {name}.", agent="clerk", run_id=name, provenance=WHO)
    bed.submit("Do.", agent="clerk", run_id="poor", budget=Budget(20_000, 4_000))
    bed.submit("Do.", agent="formal", run_id="formal")
    world.crash = lambda: bed.crash("tool-executor")
    bed.submit("Do.", agent="clerk", run_id="reconciled")
    bed.until(lambda: not any(each.role is Role.TOOL_EXECUTOR for each in bed.workers))
    world.crash = lambda: None
    bed.add("tool-executor")
    bed.settle()


def _people(bed: TestBed) -> None:
    run = bed.run
    run("approved").decide("a", "approve", token="forged")
    bed.settle()
    asked = run("approved").pending[0]
    bed.send("approved", Decide("a", Verdict.APPROVE, asked.token, "somebody", arguments=b'{"n":2}'))
    run("rejected").decide("a", "reject", message="too dear")
    run("doubt").decide("a", "ran", result={"wired": True})
    run("plain").resume()
    bed.settle()
    bed.advance(APPROVAL_S + 1)
    run("timed").resume("Do without.")
    bed.settle()
    run("refused").resume(extra_turns=1)
    bed.settle()


def _ends(bed: TestBed) -> None:
    late = bed.submit("Do.", agent="clerk", run_id="late")
    bed.until(lambda: "ToolDispatched" in late.kinds)
    bed.advance(1)
    late.cancel("enough")
    bed.advance(60)
    late.resume()
    signalled = bed.submit("Do.", agent="clerk", run_id="signalled2")
    signalled.signal("By the way.")
    bed.settle()
    cut = bed.submit("Do.", agent="clerk", run_id="cut")
    bed.until(lambda: "ToolDispatched" in cut.kinds)
    bed.restart("model-caller")
    bed.settle()
    bed.crash("tool-executor")
    bed.submit("Do.", agent="clerk", run_id="expired")
    bed.advance(DISPATCH_S + 1)
    bed.add("tool-executor")
    bed.settle()
    bed.send("plain~x", Fork(turn=1, message="And otherwise?"), "fork-1")
    bed.settle()


def _strange(bed: TestBed) -> None:
    """Records that others write, and what becomes of them."""
    waiting = bed.submit("Do.", agent="later", run_id="waiting")
    bed.advance(5)
    definition = LATER.definition()
    digest, body = encode_definition(definition)
    assert digest == digest_of(body)
    record = DefinitionRecord("later", definition.version, digest, body, bed.cluster.now_ms)
    bed.write("agent-definitions", 0, f"later/{definition.version}/{digest}".encode(), encode(record))
    bed.advance(10)
    bed.settle()
    assert waiting.state == "completed", waiting.kinds
    bed.write("run-commands", 0, b"bad", b"\xff no record")
    bed.write("run-commands", 0, b"bad", None)
    bodies: tuple[ResultBody, ...] = (Lost(3, 9), Undecodable("it is none"))
    for number, told in enumerate(bodies):
        result = Result(f"golden-{number}", "plain", 1, "a", 1, "other", "w", told)
        bed.write("run-results", 0, bytes(ResultKey("plain", 1, "a", 1)), encode(result))
    bed.send("nobody", Decide("a", Verdict.APPROVE, "t", "somebody"))
    bed.send("nothing", Submit("clerk", b'""'))
    bed.settle()


def play() -> Rows:
    """Every committed record of every topic, in the order of topic, partition and offset."""
    world = World()
    settings = MachineSettings(approval_timeout_ms=APPROVAL_S * 1_000)
    agents = [clerk(world), HELPER, FORMAL]
    with TestBed(agents, model=ScriptedModel(_flaky()), machine=settings) as bed:
        _lives(bed, world)
        _people(bed)
        _ends(bed)
        _strange(bed)
        yield from _records(bed)
    with TestBed(HELPER, model=ScriptedModel(script), partitions=1) as bed:
        bed.submit("Go.", run_id="forgotten")
        bed.settle()
        bed.advance(15 * DAY_S)
        bed.settle()
        yield from _records(bed)


def _flaky() -> Callable[[Asked], Turn]:
    """The script, behind a provider that fails at first: before, in mid-stream, and for good."""
    failed: set[str] = set()

    def answer(asked: Asked) -> Turn:
        if asked.run_id in failed or asked.run_id not in FAILURES:
            return script(asked)
        failed.add(asked.run_id)
        return FAILURES[asked.run_id]

    return answer


FAILURES: Final[Mapping[str, Turn]] = {
    "approved": fails("overloaded", after="Half a", retry_after_s=5),
    "rich": fails("rate_limited", usage=Usage(3, 0)),
    "poor": fails("connection", after="Half"),
    "signalled": fails("invalid_request", is_retryable=False),
    "garbled": Reply((), "end_turn", raw=b"no JSON"),
}


def _records(bed: TestBed) -> Rows:
    for spec in TOPICS:
        for record in bed.history.records(spec.name):
            yield spec.name, record.key, record.value
