"""A TCP proxy that knows Kafka's frames, and can delay them, hold them, lose them or cut the connections.

It stands in front of one listener of a broker that advertises the proxy's address, so nothing has to be
rewritten. Frames are lost whole and only towards the client: a request that was carried out looks unanswered,
which is what clients find hardest.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from enum import Enum
from typing import Final

FRAME: Final = struct.Struct(">i")
DELAY_S: Final = 0.3
START_S_MAX: Final = 10.0


class Weather(Enum):
    """What happens to what passes."""

    CLEAR = "clear"
    DELAY = "delay"  # every frame comes DELAY_S late
    HOLD = "hold"  # frames wait until the weather changes
    DROP = "drop"  # answers are lost
    CUT = "cut"  # connections are closed, and new ones too


class Proxy:
    """Listens on a port of its own in a thread of its own. ``frames``, ``lost``: answers seen and lost."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._weather = Weather.CLEAR
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._passable = asyncio.Event()
        self._passable.set()
        self._is_up = threading.Event()
        self.port = 0
        self.lost = 0
        self._thread = threading.Thread(target=self._serve, args=(host,), name="proxy", daemon=True)
        self._thread.start()
        assert self._is_up.wait(START_S_MAX), "the proxy does not listen"

    @property
    def weather(self) -> Weather:
        return self._weather

    def change(self, weather: Weather) -> None:
        self._weather = weather
        is_held = weather is Weather.HOLD
        self._loop.call_soon_threadsafe(self._passable.clear if is_held else self._passable.set)
        if weather is Weather.CUT:
            self._loop.call_soon_threadsafe(self._cut)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S_MAX)

    def _serve(self, host: str) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, host, 0))
        self.port = int(server.sockets[0].getsockname()[1])
        self._is_up.set()
        self._loop.run_forever()
        server.close()
        self._cut()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._weather is Weather.CUT:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._to)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, up_writer}
        self._writers |= pair
        ways = [
            asyncio.ensure_future(self._carry(reader, up_writer, is_answer=False)),
            asyncio.ensure_future(self._carry(up_reader, writer, is_answer=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for each in pair:
                each.transport.abort()
            self._writers -= pair

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(FRAME.size)
                body = await reader.readexactly(FRAME.unpack(head)[0])
                if self._weather is Weather.DELAY:
                    await asyncio.sleep(DELAY_S)
                await self._passable.wait()
                if self._weather is Weather.DROP and is_answer:
                    self.lost += 1
                    continue
                writer.write(head + body)
                await writer.drain()
