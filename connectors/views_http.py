"""The run view over HTTP, as JSON and as server-sent events.

::

    GET /runs?state=&agent=&tenant=&limit=&after=   a page of runs, newest first
    GET /runs/{run_id}                              one run
    GET /counts                                     runs and usage: in total, by agent, by tenant
    GET /healthz                                    200 when the view may be asked, else 503
    GET /stream?state=&agent=&tenant=               changes as they come (text/event-stream)

Every answer is about a second old at most (run-status is conflated), and none is a promise: what must be
right is read from the log. Errors are ``{"error": {"code", "message", "remedy"}}``.

Events of the stream: ``run`` (a row, as in /runs), ``removed`` (``run_id``: no longer kept, or no longer in
the filter), ``reset`` (read everything again). A reader that is slow is told the newest of each run only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from perdure.processors.views.fold import Put
from perdure.processors.views.index import Counts, Filter, Tally
from perdure.processors.views.row import UNREADABLE, VIEW_STATES, Read, Row
from perdure.processors.views.run_view import Heard, RunView
from perdure.schemas.errors import PerdureError, Reject, Retry

LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 1_000
KEEP_ALIVE_S: Final = 15.0
RETRY_MS: Final = 1_000
PENDING_RUNS_MAX: Final = 10_000
"""Runs that a slow reader of the stream may be behind; beyond that it is told to read everything again."""


class ViewNotReady(Retry):
    """The view is still reading the log."""

    code = "view_not_ready"
    remedy = "Ask again in a second; GET /healthz says when it is ready."


class QueryRefused(Reject):
    """The query is none that can be answered."""

    code = "query_refused"
    remedy = "Correct the parameter that is named."


class RunNotKept(Reject):
    """There is no such run."""

    code = "run_unknown"
    remedy = "Check the run id; finished runs are kept for a time only."


class Health(Protocol):
    """See :class:`perdure.connectors.faust_views.host.Health`."""

    @property
    def is_ready(self) -> bool: ...

    @property
    def caught_up_ms(self) -> int | None: ...

    @property
    def records(self) -> int: ...

    @property
    def unnamed(self) -> int: ...


class Source(Protocol):
    """Whatever keeps a view."""

    @property
    def view(self) -> RunView | None:
        """The view, or None while it is not ready."""
        ...

    def health(self) -> Health: ...


def row_json(row: Row) -> dict[str, Any]:
    """A row as it is shown: the fields of ``schemas.outputs.Status``, provenance among them."""
    if not isinstance(row, Read):
        return {"run_id": row.run_id, "state": UNREADABLE, "code": row.code, "message": row.message}
    plain: dict[str, Any] = msgspec.to_builtins(row.status)
    provenance = plain.pop("provenance")
    return {**plain, **provenance, "labels": dict(row.status.provenance.labels)}


def counts_json(counts: Counts) -> dict[str, Any]:
    return {
        **_tally(counts.total),
        "agents": [{"agent": name, **_tally(each)} for name, each in sorted(counts.agents.items())],
        "tenants": [
            {"tenant": name, **_tally(each)}
            for name, each in sorted(counts.tenants.items(), key=lambda item: item[0] or "")
        ],
    }


def views_app(source: Source, closing: asyncio.Event | None = None) -> Starlette:
    """The ASGI application. ``closing``: set it to end the streams that are open."""
    service = _Service(source, closing or asyncio.Event())
    return Starlette(
        routes=[
            Route("/runs", service.runs),
            Route("/runs/{run_id}", service.run),
            Route("/counts", service.counts),
            Route("/healthz", service.healthz),
            Route("/stream", service.stream),
        ],
        exception_handlers={PerdureError: _failed},
    )


class _Service:
    def __init__(self, source: Source, closing: asyncio.Event) -> None:
        self._source = source
        self._closing = closing

    async def runs(self, request: Request) -> Response:
        view = self._view()
        query = _query(request, {"limit", "after"})
        page = view.page(_filter(query), _limit(query.get("limit")), query.get("after") or None)
        return JSONResponse({"runs": [row_json(row) for row in page.rows], "next": page.next})

    async def run(self, request: Request) -> Response:
        run_id: str = request.path_params["run_id"]
        row = self._view().get(run_id)
        if row is None:
            raise RunNotKept(f"{run_id!r:.200}.")
        return JSONResponse(row_json(row))

    async def counts(self, _: Request) -> Response:
        return JSONResponse(counts_json(self._view().counts()))

    async def healthz(self, _: Request) -> Response:
        health = self._source.health()
        told = {
            "status": "ready" if health.is_ready else "recovering",
            "caught_up_ms": health.caught_up_ms,
            "records": health.records,
            "records_left_out": health.unnamed,
        }
        return JSONResponse(told, 200 if health.is_ready else 503)

    async def stream(self, request: Request) -> Response:
        view = self._view()
        wanted = _filter(_query(request, set()))
        return StreamingResponse(
            _events(view, wanted, self._closing),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )

    def _view(self) -> RunView:
        view = self._source.view
        if view is None:
            raise ViewNotReady
        return view


class _Pending:
    """What a reader of the stream has not been told yet: the newest of each run."""

    def __init__(self, wanted: Filter) -> None:
        self._wanted = wanted
        self._told: dict[str, str] = {}
        self._is_reset = False
        self.changed = asyncio.Event()

    def hear(self, heard: Heard) -> None:
        if heard is None or len(self._told) >= PENDING_RUNS_MAX:
            self._told.clear()
            self._is_reset = True
        elif isinstance(heard, Put) and self._wanted.takes(heard.after.group):
            self._told[heard.run_id] = _event("run", row_json(heard.after))
        elif heard.before is not None and self._wanted.takes(heard.before.group):
            self._told[heard.run_id] = _event("removed", {"run_id": heard.run_id})
        else:
            return
        self.changed.set()

    def take(self) -> str:
        self.changed.clear()
        text = (_event("reset", {}) if self._is_reset else "") + "".join(self._told.values())
        self._told.clear()
        self._is_reset = False
        return text


async def _events(view: RunView, wanted: Filter, closing: asyncio.Event) -> AsyncIterator[str]:
    pending = _Pending(wanted)
    leave: Callable[[], None] = view.listen(pending.hear)
    closed = asyncio.ensure_future(closing.wait())
    try:
        # What changed before this event was seen by whoever reads /runs after it.
        yield f"retry: {RETRY_MS}\n\n" + _event("open", {})
        while not closed.done():
            changed = asyncio.ensure_future(pending.changed.wait())
            try:
                await asyncio.wait(
                    {changed, closed}, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                changed.cancel()
            yield pending.take() or ": alive\n\n"
    finally:
        closed.cancel()
        leave()


def _event(name: str, data: Mapping[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def _tally(tally: Tally) -> dict[str, Any]:
    return {"runs": tally.runs, "states": tally.states, "usage": msgspec.to_builtins(tally.usage)}


def _query(request: Request, more: set[str]) -> dict[str, str]:
    known = {"state", "agent", "tenant"} | more
    given = dict(request.query_params)
    for name in given:
        if name not in known:
            raise QueryRefused(f"There is no {name!r:.100}; there are {', '.join(sorted(known))}.")
    return given


def _filter(query: Mapping[str, str]) -> Filter:
    state = query.get("state") or None
    if state is not None and state not in VIEW_STATES:
        raise QueryRefused(f"state {state!r:.100} is none of {', '.join(VIEW_STATES)}.")
    return Filter(state, query.get("agent") or None, query.get("tenant"))


def _limit(text: str | None) -> int:
    if text is None:
        return LIMIT_DEFAULT
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= len(str(LIMIT_MAX))):
        raise QueryRefused(f"limit is a number from 1 to {LIMIT_MAX}.")
    number = int(text)
    if not 1 <= number <= LIMIT_MAX:
        raise QueryRefused(f"limit is a number from 1 to {LIMIT_MAX}.")
    return number


def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, PerdureError)
    match error:
        case RunNotKept():
            status = 404
        case Reject():
            status = 400
        case Retry():
            status = 503
        case _:
            status = 500
    told = {"code": error.code, "message": str(error.args[0]), "remedy": error.remedy}
    return JSONResponse({"error": told}, status, headers={"Retry-After": "1"} if status == 503 else None)
