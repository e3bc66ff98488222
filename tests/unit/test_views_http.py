"""The view over HTTP, asked without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from perdure.connectors.views_http import LIMIT_MAX, views_app
from perdure.processors.views.run_view import MemoryRunView
from perdure.schemas.values import RunState
from tests.unit.view_records import fed, status, tombstone


@dataclass
class Kept:
    """A source of the view, ready or not."""

    view: MemoryRunView | None
    caught_up_ms: int | None = 7
    records: int = 3
    unnamed: int = 0

    @property
    def is_ready(self) -> bool:
        return self.view is not None

    def health(self) -> Kept:
        return self


def _view() -> MemoryRunView:
    view = MemoryRunView()
    view.feed(*fed(status("run-1", 1, created_ms=1)))
    view.feed(*fed(status("run-2", 1, RunState.COMPLETED, agent="billing", tenant=None, created_ms=2)))
    view.feed(*fed(status("run-3", 1, RunState.COMPLETED, created_ms=3)))
    return view


def _get(path: str, view: MemoryRunView | None = None) -> tuple[int, Any]:
    async def asked() -> tuple[int, Any]:
        transport = httpx2.ASGITransport(app=views_app(Kept(view or _view())))
        async with httpx2.AsyncClient(transport=transport, base_url="http://view") as client:
            answer = await client.get(path)
            return answer.status_code, answer.json()

    return asyncio.run(asked())


@pytest.mark.parametrize(
    ("query", "run_ids"),
    [
        ("", ["run-3", "run-2", "run-1"]),
        ("?state=completed", ["run-3", "run-2"]),
        ("?agent=support&state=completed", ["run-3"]),
        ("?tenant=acme", ["run-3", "run-1"]),
        ("?tenant=", ["run-2"]),
        ("?agent=nobody", []),
    ],
)
def test_runs_are_listed_newest_first_and_filtered(query: str, run_ids: list[str]) -> None:
    """Each filter narrows, all of them together."""
    code, told = _get("/runs" + query)
    assert (code, [run["run_id"] for run in told["runs"]], told["next"]) == (200, run_ids, None)


def test_next_leads_to_the_rest() -> None:
    """`next` of one page, passed as `after`, gives the page that follows."""
    _, first = _get("/runs?limit=2")
    _, second = _get(f"/runs?limit=2&after={first['next']}")
    assert [run["run_id"] for run in first["runs"] + second["runs"]] == ["run-3", "run-2", "run-1"]
    assert second["next"] is None


def test_a_run_is_told_whole() -> None:
    """One run has the fields of its status, with provenance beside them and labels as an object."""
    code, told = _get("/runs/run-1")
    assert code == 200
    assert (told["state"], told["seq"], told["tenant"], told["labels"]) == ("running", 1, "acme", {})
    assert told["usage"]["input_tokens"] == 10


def test_counts_are_told_in_total_by_agent_and_by_tenant() -> None:
    """Every state is named, also with 0, and runs without a tenant are under null."""
    _, told = _get("/counts")
    assert (told["runs"], told["states"]["completed"], told["states"]["failed"]) == (3, 2, 0)
    assert [(each["agent"], each["runs"]) for each in told["agents"]] == [("billing", 1), ("support", 2)]
    assert [(each["tenant"], each["runs"]) for each in told["tenants"]] == [(None, 1), ("acme", 2)]
    assert told["usage"]["input_tokens"] == 30


@pytest.mark.parametrize(
    ("path", "status_code", "code"),
    [
        ("/runs/nobody", 404, "run_unknown"),
        ("/runs?state=sleeping", 400, "query_refused"),
        ("/runs?limit=0", 400, "query_refused"),
        (f"/runs?limit={LIMIT_MAX + 1}", 400, "query_refused"),
        ("/runs?limit=" + "9" * 5_000, 400, "query_refused"),
        ("/runs?order=up", 400, "query_refused"),
        ("/runs?after=x", 400, "cursor_refused"),
    ],
)
def test_what_can_not_be_answered_is_refused_with_its_reason(path: str, status_code: int, code: str) -> None:
    """A wrong parameter is never ignored."""
    answered, told = _get(path)
    assert (answered, told["error"]["code"]) == (status_code, code)


@pytest.mark.parametrize("path", ["/runs", "/runs/run-1", "/counts", "/stream"])
def test_nothing_is_told_while_the_log_is_still_read(path: str) -> None:
    """A list that is half read would pass for the whole; healthz says so too."""

    async def asked() -> tuple[int, Any, int]:
        transport = httpx2.ASGITransport(app=views_app(Kept(None, caught_up_ms=None)))
        async with httpx2.AsyncClient(transport=transport, base_url="http://view") as client:
            answer = await client.get(path)
            return answer.status_code, answer.json(), (await client.get("/healthz")).status_code

    code, told, healthz = asyncio.run(asked())
    assert (code, told["error"]["code"], healthz) == (503, "view_not_ready", 503)


def test_health_is_told_when_ready() -> None:
    """200 is the sign to send readers here."""
    code, told = _get("/healthz")
    assert (code, told["status"], told["caught_up_ms"]) == (200, "ready", 7)


async def _streamed(app: Starlette, query: str) -> AsyncGenerator[dict[str, Any]]:
    """Events of /stream as they are sent, over the bare ASGI protocol."""
    sent: asyncio.Queue[str | None] = asyncio.Queue()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await sent.put(message["body"].decode())

    scope = {
        "type": "http", "method": "GET", "path": "/stream", "query_string": query.encode(), "headers": [],
        "asgi": {"version": "3.0", "spec_version": "2.4"},
    }  # fmt: skip
    call: Callable[..., Awaitable[None]] = app
    serving = asyncio.ensure_future(call(scope, receive, send))
    serving.add_done_callback(lambda _: sent.put_nowait(None))
    try:
        while (text := await sent.get()) is not None:
            for block in filter(None, text.split("\n\n")):
                fields = dict(line.split(": ", 1) for line in block.splitlines())
                if "event" in fields:
                    yield {"event": fields["event"], **json.loads(fields["data"])}
    finally:
        serving.cancel()


def test_the_stream_tells_changes_of_the_filter() -> None:
    """Runs that come into the filter are told, those that leave it are removed, others are not heard of."""

    async def heard() -> list[tuple[str, str | None]]:
        view = _view()
        closing = asyncio.Event()
        told: list[tuple[str, str | None]] = []
        async with aclosing(_streamed(views_app(Kept(view), closing), "state=running")) as events:
            async for event in events:
                told.append((event["event"], event.get("run_id")))
                match event["event"]:
                    case "open":
                        view.feed(*fed(status("run-4", 1)))
                        view.feed(*fed(status("run-5", 1, RunState.QUEUED)))
                        view.feed(*fed(status("run-1", 2, RunState.FAILED)))
                    case "removed" if event["run_id"] == "run-1":
                        view.feed(*tombstone("run-4"))
                    case "removed":
                        view.rebuild()
                    case "reset":
                        closing.set()
                    case _:
                        pass
        return told

    assert asyncio.run(heard()) == [
        ("open", None), ("run", "run-4"), ("removed", "run-1"), ("removed", "run-4"), ("reset", None),
    ]  # fmt: skip


def test_a_slow_reader_is_told_the_newest_of_each_run() -> None:
    """What was not sent yet is replaced by what came after."""

    async def heard() -> list[int]:
        view = _view()
        seqs: list[int] = []
        async with aclosing(_streamed(views_app(Kept(view)), "")) as events:
            async for event in events:
                if event["event"] == "open":
                    for seq in (2, 3, 4):
                        view.feed(*fed(status("run-1", seq)))
                else:
                    seqs.append(event["seq"])
                    break
        return seqs

    assert asyncio.run(heard()) == [4]
