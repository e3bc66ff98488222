"""HTTP requests as tools: what is sent, and what each way of ending becomes."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from perdure.connectors.declared_tool import UnusableDeclaration
from perdure.connectors.http_tools import http_tool
from perdure.processors.abort import AbortSignal
from perdure.schemas.results import Completed, Failed
from perdure.schemas.values import Effect, FailureKind
from tests.unit.declared_tools import KEY, Caller, text_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "amount": {"type": "integer"}},
    "required": ["id"],
}


class Service:
    """An HTTP server on loopback. ``status``, ``headers``, ``body``: its answer; it keeps what it saw."""

    def __init__(self) -> None:
        self.status = 200
        self.headers = {"Content-Type": "application/json"}
        self.body = b"{}"
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.is_cut = False
        self.asked = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                headers = {name.lower(): value for name, value in self.headers.items()}
                service.seen.append((self.command, self.path, headers, body))
                service.asked.set()
                service.go_on.wait()
                if service.is_cut:
                    self.close_connection = True
                    return
                self.send_response(service.status)
                for name, value in service.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(service.body)))
                self.end_headers()
                try:
                    self.wfile.write(service.body)
                except OSError:
                    self.close_connection = True

            do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - names of the base class

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's
                """Keep quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def close(self) -> None:
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def caller(self, path: str = "/pay/{id}", **options: Any) -> Caller:
        timeout_ms = options.pop("timeout_ms", None)
        given: dict[str, Any] = {"url": self.url + path, "schema": SCHEMA, **options}
        return Caller(http_tool("it", **given), timeout_ms=timeout_ms)


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


def failed(caller: Caller) -> Failed:
    answer = caller.run({"id": "i"})
    assert isinstance(answer, Failed), answer
    return answer


def test_a_request_carries_arguments_headers_and_the_key(service: Service) -> None:
    """Places of the URL are filled in encoded, the rest is the body, the key is a header."""
    service.body = b'{"paid": true}'
    caller = service.caller("/pay/{id}?deep=1", headers=lambda: {"Authorization": "Bearer t"})
    assert text_of(caller.run({"id": "a/b?c", "amount": 3})) == '{"paid":true}'
    ((method, path, headers, body),) = service.seen
    assert (method, path) == ("POST", "/pay/a%2Fb%3Fc?deep=1")
    assert json.loads(body) == {"amount": 3}
    assert headers["idempotency-key"] == KEY
    assert headers["authorization"] == "Bearer t"
    assert headers["content-type"] == "application/json"


def test_what_has_no_body_carries_a_query(service: Service) -> None:
    """GET and DELETE put the other arguments into the query."""
    service.headers, service.body = {"Content-Type": "text/plain"}, b"plain"
    assert text_of(service.caller(method="GET").run({"id": "i", "amount": 3})) == "plain"
    assert service.seen[0][:2] == ("GET", "/pay/i?amount=3")


@pytest.mark.parametrize("place", ["..", ".", ""])
def test_an_argument_cannot_leave_its_place(service: Service, place: str) -> None:
    """Dots would climb out of the path; nothing is sent."""
    answer = service.caller().run({"id": place})
    assert isinstance(answer, Completed)
    assert answer.is_error
    assert service.seen == []


def test_invalid_arguments_send_nothing(service: Service) -> None:
    """The model is told what is wrong with them."""
    answer = service.caller().run({"amount": "much"})
    assert isinstance(answer, Completed)
    assert answer.is_error
    assert service.seen == []


def test_the_effect_is_non_idempotent_unless_the_author_says_otherwise(service: Service) -> None:
    """A method proves nothing, GET included."""
    assert service.caller(method="GET").declared.effect is Effect.NON_IDEMPOTENT
    assert service.caller(method="GET", effect="read_only").declared.effect is Effect.READ_ONLY


@pytest.mark.parametrize("status", [400, 404, 409, 422, 429])
def test_a_client_error_is_the_service_s_answer(service: Service, status: int) -> None:
    """A 4xx status is definite: an error result that the model reads."""
    service.status, service.body = status, b'{"why": "no"}'
    answer = service.caller().run({"id": "i"})
    assert isinstance(answer, Completed)
    assert answer.is_error
    assert f"HTTP {status}" in text_of(answer)
    assert '{"why": "no"}' in text_of(answer)


@pytest.mark.parametrize("status", [302, 408, 425, 500, 503])
def test_a_status_that_says_nothing_is_a_failure(service: Service, status: int) -> None:
    """Redirects, server errors and time-outs of proxies leave open what was done, unless declared."""
    service.status, service.headers = status, {"Location": "/elsewhere"}
    failure = failed(service.caller())
    assert failure.kind is FailureKind.EXCEPTION
    assert "[http_status_unknown]" in failure.message
    assert len(service.seen) == 1, "neither repeated nor followed"
    answer = service.caller(definite_statuses=[status]).run({"id": "i"})
    assert isinstance(answer, Completed)
    assert answer.is_error


def test_statuses_can_be_declared(service: Service) -> None:
    """A service whose 409 means busy and whose 429 means refused can say so."""
    service.status = 409
    assert failed(service.caller(unknown_statuses=[409])).kind is FailureKind.EXCEPTION
    service.status = 429
    assert failed(service.caller(not_executed_statuses=[429])).kind is FailureKind.NOT_EXECUTED


def test_a_refused_connection_was_not_executed() -> None:
    """Nothing was sent, so nothing happened."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        failure = failed(Caller(http_tool("it", url=url, schema=SCHEMA)))
    assert failure.kind is FailureKind.NOT_EXECUTED
    assert "[http_not_sent]" in failure.message


def test_a_connection_that_breaks_leaves_open_what_was_done(service: Service) -> None:
    """The request was received; a reset before the answer is a failed connection, not a refusal."""
    service.is_cut = True
    failure = failed(service.caller())
    assert failure.kind is FailureKind.CONNECTION
    assert len(service.seen) == 1


def test_a_service_that_does_not_answer_ends_in_the_deadline(service: Service) -> None:
    """The attempt's deadline is enforced."""
    service.go_on.clear()
    assert failed(service.caller(timeout_ms=300)).kind is FailureKind.DEADLINE


def test_an_abort_closes_the_request(service: Service) -> None:
    """A cancel does not wait for the service."""
    service.go_on.clear()

    async def scenario() -> Any:
        abort = AbortSignal()
        calling = asyncio.ensure_future(service.caller().call({"id": "i"}, abort))
        await asyncio.to_thread(service.asked.wait)
        abort.abort("cancelled")
        async with asyncio.timeout(5):
            return await calling

    answer = asyncio.run(scenario())
    assert isinstance(answer, Failed)
    assert answer.kind is FailureKind.ABORTED


def test_only_the_head_of_a_large_body_is_kept(service: Service) -> None:
    """The call happened; the model gets the head of its answer and is told."""
    service.body = b"a" * 4_000_000
    assert (
        text_of(service.caller(output_bytes_max=1000).run({"id": "i"})) == "a" * 1000 + "\n[cut: the limit]"
    )


def test_a_body_that_is_not_what_was_promised_is_no_answer(service: Service) -> None:
    """JSON that is none, or violates the schema, is a failure of the output."""
    service.body = b"{"
    assert failed(service.caller()).kind is FailureKind.OUTPUT
    service.body = b"1"
    assert failed(service.caller(output_schema={"type": "object"})).kind is FailureKind.OUTPUT


def test_a_url_that_the_model_could_turn_elsewhere_is_refused() -> None:
    """Places are for path and query, and their arguments are required."""
    for url in ("http://{id}/x", "ftp://host/{id}", "/only/a/path", "http://host/{amount}"):
        with pytest.raises(UnusableDeclaration):
            http_tool("it", url=url, schema=SCHEMA)
