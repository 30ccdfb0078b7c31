"""A TCP proxy between a program and a server that a test can cut, silence, slow down and restore.

It has one thread and one asyncio loop, forwards bytes and knows no protocol.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final

_CHUNK_BYTES: Final = 64 * 1024
# Linger for no time: closing sends a reset, not an orderly end.
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on `host`:`port`; give that address to the program instead of the server's."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = (target_host, target_port)
        self.bytes_to_server = 0
        self.bytes_to_client = 0
        self.connections_made = 0
        self._delay_seconds = 0.0
        self._bytes_per_second: float | None = None
        self._flowing = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.host, self.port = "127.0.0.1", 0
        self._server: asyncio.Server | None = None
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        assert self._ready.wait(10), "the proxy could not listen"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def open_connections(self) -> int:
        return len(self._writers) // 2

    def cut(self) -> None:
        """Reset every connection, and refuse new ones until `restore`."""
        self._call(self._refuse)

    def reset_connections(self) -> None:
        """Reset every connection, and accept new ones."""
        self._call(self._reset_all)

    def blackhole(self) -> None:
        """Keep connections open and accept new ones, but forward nothing: a network cut without a reset.

        What was read already is held back and delivered after `restore`, as a network would retransmit it.
        """
        self._call(self._hold)

    def delay(self, seconds: float) -> None:
        """Delay every piece by this time."""
        self._delay_seconds = seconds

    def limit(self, bytes_per_second: float) -> None:
        """Limit each direction of each connection to this rate."""
        self._bytes_per_second = bytes_per_second

    def restore(self) -> None:
        """Forward everything at once on every connection."""
        self._delay_seconds = 0.0
        self._bytes_per_second = None
        self._call(self._listen)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the function in the loop's thread and wait, so that the effect is there when the call returns."""
        asyncio.run_coroutine_threadsafe(action(), self._loop).result(timeout=10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._end())
            self._loop.close()

    async def _listen(self) -> None:
        """Listen on the same port every time, so that a program can reconnect after a cut."""
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._welcome, self.host, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._reset_all()

    async def _hold(self) -> None:
        self._flowing.clear()

    async def _reset_all(self) -> None:
        for writer in self._writers:
            _reset(writer)

    async def _end(self) -> None:
        await self._refuse()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _welcome(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections_made += 1
        writers = [to_client]
        self._writers.add(to_client)
        try:
            from_server, to_server = await asyncio.open_connection(*self.target)
            writers.append(to_server)
            self._writers.add(to_server)
            await asyncio.gather(
                self._pump(from_client, to_server, to_server_side=True),
                self._pump(from_server, to_client, to_server_side=False),
            )
            for writer in writers:
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.CancelledError):
            # One end broke: so does the other, as it would without us.
            for writer in writers:
                _reset(writer)
        finally:
            self._writers.difference_update(writers)
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server_side: bool) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if self._delay_seconds:
                await asyncio.sleep(self._delay_seconds)
            while data:
                # Looked at for each piece: a limit or its end takes effect on what was read before it, too.
                piece, data = data[: self._piece_bytes()], data[self._piece_bytes() :]
                if self._bytes_per_second is not None:
                    await asyncio.sleep(len(piece) / self._bytes_per_second)
                await self._flowing.wait()
                writer.write(piece)
                await writer.drain()
                if to_server_side:
                    self.bytes_to_server += len(piece)
                else:
                    self.bytes_to_client += len(piece)
        # An orderly end is passed on, unless the way is blocked: a blackhole swallows that too.
        await self._flowing.wait()
        if writer.can_write_eof():
            writer.write_eof()

    def _piece_bytes(self) -> int:
        # Small pieces under a limit: the flow is slow, not a burst once in a while.
        if self._bytes_per_second is None:
            return _CHUNK_BYTES
        return max(1, min(_CHUNK_BYTES, int(self._bytes_per_second / 10)))


def _reset(writer: asyncio.StreamWriter) -> None:
    # One that is closing already may have forgotten its socket; under TLS, asking for it fails then.
    raw = None if writer.is_closing() else writer.get_extra_info("socket")
    if raw is not None and raw.fileno() != -1:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
