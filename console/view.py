"""``perdure view``: the run view, kept by Faust and served over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from perdure.console.session import Session
from perdure.schemas.errors import Restore, Stop

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

    from perdure.connectors.faust_views.host import ViewHost
    from perdure.connectors.settings import Settings

HOST: Final = "127.0.0.1"
PORT: Final = 8470
RESTART_DELAY_S: Final = 1.0
GRACE_S: Final = 3

_log: Final = logging.getLogger(__name__)


class ViewsNotInstalled(Stop):
    """The view needs libraries that are not installed."""

    code = "views_not_installed"
    remedy = "Install perdure[views]."


class AddressTaken(Stop):
    """The view can not listen where it was told to."""

    code = "view_address_taken"
    remedy = "Stop the other process, or choose another --port."


def register(app: typer.Typer) -> None:
    app.command("view")(view)


def view(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(help="The address to listen on; it has no log-in of its own.")] = HOST,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: a free one.")] = PORT,
) -> None:
    """Serve the list of runs over HTTP: /runs, /runs/RUN, /counts, /healthz, /stream."""
    session: Session = ctx.obj
    raise typer.Exit(serve_views(session.settings, host, port))


def serve_views(settings: Settings, host: str, port: int) -> int:
    """Serve until SIGTERM or Ctrl-C; the exit code. A view that must begin anew becomes a new process.

    Raises:
        ViewsNotInstalled, AddressTaken, ViewFolderUnusable, TopicMissing, SecurityUnsupported: before it
            began.
    """
    from perdure.console.logs import start_logging
    from perdure.console.serving import restart

    start_logging(settings.log_level, "view")
    try:
        asyncio.run(_serve(settings, host, port))
    except Restore as error:
        _log.error("%s", error, extra={"action": "view_failed", "code": error.code})
        restart(error.code)
    return 0


async def _serve(settings: Settings, host: str, port: int) -> None:
    try:
        from perdure.connectors.faust_views.folder import take_view_folder
        from perdure.connectors.faust_views.host import ViewHost
        from perdure.connectors.views_http import views_app
    except ImportError as error:
        raise ViewsNotInstalled(f"{error}.") from error
    from perdure.processors.clock import SystemClock, SystemEntropy

    stopping = _told_to_stop()
    with (
        _listening(host, port) as listener,
        take_view_folder(settings.state_dir, settings.namespace) as folder,
    ):
        views = ViewHost(settings, folder, SystemClock(), SystemEntropy())
        server = _server(views_app(views, stopping))
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        print(f"http://{host}:{listener.getsockname()[1]}", flush=True)
        try:
            await _run(views, stopping)
        finally:
            # Also when the view failed: open streams end, and their readers come back to the new process.
            stopping.set()
            server.should_exit = True
            await serving


async def _run(views: ViewHost, stopping: asyncio.Event) -> None:
    try:
        await views.run(stopping)
    except Restore:
        # A fault that does not go away must not turn the process over without a pause.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), RESTART_DELAY_S)
        raise


def _told_to_stop() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise AddressTaken(f"{host}:{port}: {error}.") from error


def _server(app: Starlette) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            yield  # the process has its own, which ends the view as well

    return Server(
        uvicorn.Config(
            app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_S
        )
    )
