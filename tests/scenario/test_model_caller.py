"""The model-caller: transcripts, the model's answer, live deltas."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest

from perdure.processors.abort import AbortSignal
from perdure.processors.headers import request_headers
from perdure.processors.machine.transcript import extend_digest, start_digest
from perdure.processors.model_caller import REPLY_BYTES_MAX, ModelCaller
from perdure.processors.ports import ModelInvocation, OnDelta
from perdure.processors.transcripts import MemoryTranscripts
from perdure.schemas.codec import decode, encode
from perdure.schemas.definition import AgentDefinition
from perdure.schemas.outputs import Delta
from perdure.schemas.requests import ModelRequest
from perdure.schemas.results import Declined, ModelFailed, ModelReplied, Result, Suspect, Undecodable
from perdure.schemas.values import DeclineReason, Usage
from perdure.topics.log import Outgoing
from perdure.topics.model_faults import Api, Fate
from perdure.topics.model_log import ModelLog
from perdure.topics.table import MODEL_REQUESTS, RUN_DELTAS, Role
from tests.scenario.executor_stage import NAMES, SeededEntropy, Stage, Worker

SESSION_MS = 60_000
DEFINITION = AgentDefinition(agent="a", version="1", model="m")
Answer = Callable[[ModelInvocation], ModelReplied | ModelFailed]


class Definitions:
    def by_digest(self, digest: str) -> AgentDefinition | None:
        return DEFINITION if digest == "d" else None

    def newest(self, agent: str, version: str | None) -> tuple[str, AgentDefinition] | None:
        return None


@dataclasses.dataclass
class Model:
    """A scripted model. ``asked``: what it was asked, in order. ``takes_ms``: how long it streams."""

    stage: Stage
    asked: list[ModelInvocation] = dataclasses.field(default_factory=list)
    pieces: tuple[str, ...] = ("Hel", "lo")
    takes_ms: int = 0
    answer: Answer | None = None

    async def invoke(
        self, call: ModelInvocation, abort: AbortSignal, on_delta: OnDelta
    ) -> ModelReplied | ModelFailed:
        self.asked.append(call)
        for piece in self.pieces:
            on_delta(0, "text", piece)
        until_ms = self.stage.cluster.now_ms + self.takes_ms
        while self.stage.cluster.now_ms < until_ms:
            abort.raise_if_aborted()
            await asyncio.sleep(0)
        if self.answer is not None:
            return self.answer(call)
        content = json.dumps([{"type": "text", "text": "Hello"}]).encode()
        return ModelReplied(call.invocation_id, call.digest, content, "end_turn", Usage(1, 2))


class Cast:
    """A stage with model-callers, and a run whose transcript grows turn by turn."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.stage.provision(Role.MODEL_CALLER, MODEL_REQUESTS)
        self.model = Model(self.stage)
        self.transcripts: list[MemoryTranscripts] = []
        self.digest = start_digest("d")
        self.whole: list[bytes] = []

    def caller(self, name: str = "m1", bytes_max: int = 1 << 20) -> Worker:
        transcripts = MemoryTranscripts(bytes_max)
        self.transcripts.append(transcripts)

        def work(log: ModelLog) -> ModelCaller:
            deltas = log.producer(f"{name}.deltas")
            entropy = SeededEntropy(len(self.transcripts))
            return ModelCaller(
                self.model, Definitions(), transcripts, entropy, deltas, NAMES.topic(RUN_DELTAS)
            )

        return self.stage.worker(name, work)

    def request(self, turn: int, *messages: bytes, run_id: str = "run", **more: object) -> ModelRequest:
        """The next request of the run: what is new since the previous one, pinned by digests."""
        base, self.digest = self.digest, extend_digest(self.digest, *messages)
        self.whole += messages
        request = ModelRequest(
            run_id=run_id,
            turn=turn,
            attempt=1,
            request_id=f"{run_id}-{turn}",
            execution=0,
            definition="d",
            base_digest=base,
            digest=self.digest,
            messages=messages,
            max_tokens=100,
            start_by_ms=self.stage.cluster.now_ms + 3_600_000,
            timeout_ms=60_000,
        )
        return msgspec.structs.replace(request, **more)

    def ask(self, request: ModelRequest) -> None:
        self.stage.ask_model(request)

    def whole_of(self, request: ModelRequest, chunks: Sequence[Sequence[bytes]]) -> list[ModelRequest]:
        """The same request with the whole transcript, in chunks."""
        return [
            msgspec.structs.replace(
                request,
                base_digest=start_digest("d"),
                messages=tuple(chunk),
                is_whole=True,
                chunk=number,
                chunks=len(chunks),
            )
            for number, chunk in enumerate(chunks)
        ]

    def ask_together(self, requests: Sequence[ModelRequest]) -> None:
        """Write requests in one transaction, as the orchestrator does."""
        writer = self.stage.client.transactional("orchestrator", 60_000)
        writer.init(5)
        writer.begin()
        for each in requests:
            value = encode(each)
            writer.produce(Outgoing(NAMES.topic(MODEL_REQUESTS), 0, b"run", value, request_headers(each)))
        writer.commit(5)

    def told(self, turn: int) -> list[Result]:
        return [each for each in self.stage.results() if each.turn == turn]

    def kinds(self, turn: int) -> list[str]:
        return [type(each.body).__name__ for each in self.told(turn)]

    def deltas(self) -> list[Delta]:
        return [decode(Delta, each.value) for each in self.stage.cluster.visible(NAMES.topic(RUN_DELTAS), 0)]


@pytest.fixture
def cast() -> Iterator[Cast]:
    cast = Cast()
    yield cast
    cast.stage.close()


# ---- transcripts
# ---------------------------------------------------------------------------------------------


def test_a_transcript_grows_by_what_is_new(cast: Cast) -> None:
    """Each request carries only new messages; the model is asked with all of them, byte for byte."""
    cast.caller()
    cast.ask(cast.request(1, b'{"role":"user"}'))
    cast.stage.settle()
    cast.ask(cast.request(2, b'{"role":"assistant"}', b'{"role": "user"}'))
    cast.stage.settle()
    assert [call.messages for call in cast.model.asked] == [
        (b'{"role":"user"}',),
        (b'{"role":"user"}', b'{"role":"assistant"}', b'{"role": "user"}'),
    ]
    [result] = cast.told(2)
    assert isinstance(result.body, ModelReplied)
    assert result.body.digest == cast.digest
    assert (result.run_id, result.call_id, result.request_id) == ("run", "", "run-2")


def test_a_retry_of_the_same_turn_finds_its_base(cast: Cast) -> None:
    """A second attempt of a turn extends the same prefix again."""
    cast.caller()
    cast.ask(cast.request(1, b"1"))
    cast.stage.settle()
    request = cast.request(2, b"2", b"3")
    cast.ask(request)
    cast.stage.settle()
    cast.ask(msgspec.structs.replace(request, attempt=2, request_id="again"))
    cast.stage.settle()
    assert cast.kinds(2) == ["ModelReplied", "ModelReplied"]
    assert cast.model.asked[-1].messages == (b"1", b"2", b"3")


def test_a_worker_without_the_prefix_asks_for_the_transcript_and_gets_it_in_chunks(cast: Cast) -> None:
    """On a miss NeedTranscript is told; the whole, in chunks that are done together, then serves this
    and the next.
    """
    first = cast.caller("m1")
    cast.ask(cast.request(1, b"1"))
    cast.stage.settle()
    first.executor.close()
    first.is_alive = False
    cast.caller("m2")
    request = cast.request(2, b"2", b"3")
    cast.ask(request)
    cast.stage.settle()
    assert cast.kinds(2) == ["NeedTranscript"]
    cast.ask_together(cast.whole_of(request, [(b"1",), (b"2",), (b"3",)]))
    cast.stage.settle()
    assert cast.kinds(2) == ["NeedTranscript", "ModelReplied"]
    assert cast.model.asked[-1].messages == (b"1", b"2", b"3")
    cast.ask(cast.request(3, b"4"))
    cast.stage.settle()
    assert cast.kinds(3) == ["ModelReplied"]
    assert cast.stage.committed(role=Role.MODEL_CALLER, topic=MODEL_REQUESTS)[0] == 7


def test_a_whole_transcript_that_does_not_match_fails_for_good(cast: Cast) -> None:
    """If even the whole has another digest, asking again can not help."""
    cast.caller()
    request = cast.request(1, b"1", b"2")
    cast.ask_together(cast.whole_of(request, [(b"1", b"two")]))
    cast.stage.settle()
    [result] = cast.told(1)
    assert isinstance(result.body, ModelFailed)
    assert (result.body.code, result.body.is_retryable) == ("transcript_mismatch", False)
    assert cast.model.asked == []


def test_chunks_without_their_predecessors_or_successors_are_answered(cast: Cast) -> None:
    """A transcript that can never be complete pins nothing: its request is told undecodable."""
    cast.caller()
    request = cast.request(1, b"1", b"2", b"3")
    chunks = cast.whole_of(request, [(b"1",), (b"2",), (b"3",)])
    cast.ask(chunks[1])
    cast.stage.settle()
    assert cast.kinds(1) == ["Undecodable"]
    cast.ask(chunks[0])
    cast.ask(msgspec.structs.replace(request, attempt=2, request_id="again"))
    cast.stage.settle()
    assert [type(each.body) for each in cast.told(1)] == [Undecodable, Undecodable, ModelReplied]
    assert cast.stage.committed(role=Role.MODEL_CALLER, topic=MODEL_REQUESTS)[0] == 3


def test_a_forgotten_transcript_is_asked_for_again(cast: Cast) -> None:
    """The cache is bounded in bytes; what it dropped is no error."""
    cast.caller(bytes_max=400)
    cast.ask(cast.request(1, b"1" * 200))
    cast.stage.settle()
    other = extend_digest(start_digest("d"), b"x" * 200)
    cast.ask(
        cast.request(1, run_id="other", base_digest=start_digest("d"), digest=other, messages=(b"x" * 200,))
    )
    cast.stage.settle()
    cast.ask(cast.request(2, b"2"))
    cast.stage.settle()
    assert cast.kinds(2) == ["NeedTranscript"]
    assert cast.transcripts[0].size <= 400


# ---- calls
# ---------------------------------------------------------------------------------------------------


def test_a_model_call_in_flight_at_a_kill_is_suspect(cast: Cast) -> None:
    """A started model call is not asked again blindly: its money may be spent."""
    cast.model.takes_ms = 10_000
    first = cast.caller("m1")
    cast.ask(cast.request(1, b"1"))
    cast.stage.until(lambda: len(cast.model.asked) == 1)
    first.kill()
    cast.caller("m2")
    cast.stage.until(lambda: bool(cast.told(1)), limit_ms=2 * SESSION_MS)
    assert [type(each.body) for each in cast.told(1)] == [Suspect]
    assert len(cast.model.asked) == 1


def test_a_started_chunked_request_is_one_suspect(cast: Cast) -> None:
    """However many records a request is made of, one suspect is told, and all of them are done."""
    cast.model.takes_ms = 10_000
    first = cast.caller("m1")
    cast.ask_together(cast.whole_of(cast.request(1, b"1", b"2"), [(b"1",), (b"2",)]))
    cast.stage.until(lambda: len(cast.model.asked) == 1)
    first.kill()
    second = cast.caller("m2")
    cast.stage.until(lambda: bool(cast.told(1)), limit_ms=2 * SESSION_MS)
    cast.stage.settle(second)
    assert [type(each.body) for each in cast.told(1)] == [Suspect]
    assert cast.stage.committed(role=Role.MODEL_CALLER, topic=MODEL_REQUESTS)[0] == 2


def test_a_claim_of_unknown_outcome_asks_no_model(cast: Cast) -> None:
    """Without a durable started bit the model is not asked, for a lost call could not be charged."""
    caller = cast.caller()
    cast.stage.run(100)
    client_id = NAMES.client_id(Role.MODEL_CALLER, "m1", "requests")
    cast.stage.cluster.faults.inject(Api.OFFSET_COMMIT, client_id, Fate.LOST)
    cast.ask(cast.request(1, b"1"))
    cast.stage.run(10_000, caller)
    assert cast.model.asked == []


def test_a_cancelled_execution_aborts_the_stream(cast: Cast) -> None:
    """The signal reaches the model stream, and the run's failure is not to be retried."""
    cast.model.takes_ms = 50_000
    cast.caller()
    cast.ask(cast.request(1, b"1"))
    cast.stage.until(lambda: len(cast.model.asked) == 1)
    cast.stage.signal("run", 0)
    cast.stage.settle()
    [result] = cast.told(1)
    assert isinstance(result.body, ModelFailed)
    assert (result.body.code, result.body.is_retryable) == ("call_aborted", False)
    assert result.body.invocation_id == cast.model.asked[0].invocation_id


def test_an_agent_this_worker_does_not_know_is_declined(cast: Cast) -> None:
    """A definition that was not read yet is a reason to try elsewhere or later."""
    cast.caller()
    cast.ask(cast.request(1, b"1", definition="other"))
    cast.stage.settle()
    [result] = cast.told(1)
    assert isinstance(result.body, Declined)
    assert result.body.reason is DeclineReason.UNAVAILABLE


@pytest.mark.parametrize(
    "content", [b"no json", b"{}", b'[{"type": "text", "text": "' + b"x" * REPLY_BYTES_MAX + b'"}]']
)
def test_a_reply_that_can_not_be_recorded_fails_and_its_usage_counts(cast: Cast, content: bytes) -> None:
    """A reply over the limit or not of the API's form is a failure that still says what it cost."""
    cast.model.answer = lambda call: ModelReplied(
        call.invocation_id, call.digest, content, "end_turn", Usage(7, 8)
    )
    cast.caller()
    cast.ask(cast.request(1, b"1"))
    cast.stage.settle()
    [result] = cast.told(1)
    assert isinstance(result.body, ModelFailed)
    assert (result.body.code, result.body.usage) == ("output_unusable", Usage(7, 8))


# ---- deltas
# --------------------------------------------------------------------------------------------------


def test_deltas_name_the_invocation_they_belong_to(cast: Cast) -> None:
    """What is streamed reaches run-deltas under the run's key, and a retry has another invocation id."""
    cast.caller()
    request = cast.request(1, b"1")
    cast.ask(request)
    cast.stage.settle()
    cast.ask(msgspec.structs.replace(request, attempt=2, request_id="again"))
    cast.stage.settle()
    deltas = cast.deltas()
    assert [each.text for each in deltas] == ["Hello", "Hello"]
    assert [each.invocation_id for each in deltas] == [call.invocation_id for call in cast.model.asked]
    assert len({each.invocation_id for each in deltas}) == 2


def test_deltas_are_never_state(cast: Cast) -> None:
    """A worker that can not write deltas answers all the same; half a character is no reason to fail."""
    cast.model.pieces = ("\ud83d", "x" * (5 << 20))
    cast.caller()
    cast.stage.cluster.faults.inject(Api.PRODUCE, "m1.deltas", Fate.LOST, 100)
    cast.ask(cast.request(1, b"1"))
    cast.stage.settle()
    assert cast.kinds(1) == ["ModelReplied"]
