"""A proxy in front of Postgres that changes messages of the walsender, as a broken server or network would."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# Gets a CopyData message's content; gives the bytes to send instead (framed, or not if they shall be garbage).
Tamper = Callable[[bytes], bytes]

_XLOG_HEADER_BYTES: Final = 25
_QUESTION_BYTES: Final = 8  # of SSLRequest and GSSENCRequest


def copy_data(content: bytes) -> bytes:
    """A CopyData message with this content."""
    return b"d" + struct.pack("!I", len(content) + 4) + content


def in_message(change: Callable[[bytes], bytes]) -> Tamper:
    """Change the pgoutput message inside the replication message, and nothing else."""

    def tamper(content: bytes) -> bytes:
        return copy_data(content[:_XLOG_HEADER_BYTES] + change(content[_XLOG_HEADER_BYTES:]))

    return tamper


class TamperingProxy:
    """Forwards ordinary sessions; `tamper_next` changes the next message of a kind on a replication session."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._tamper: Tamper | None = None
        self._kinds = b""
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def tamper_next(self, tamper: Tamper, kinds: bytes = b"IUD") -> None:
        """`kinds`: pgoutput message types by their first byte, rows by default."""
        self._kinds = kinds
        self._tamper = tamper

    @property
    def tampered(self) -> bool:
        return self._tamper is None

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            with suppress(OSError):  # a client that was killed in the middle of its greeting
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(self._target)
        self._sockets += [client, server]
        first = _first_packet(client, server)
        answer = self._watch if b"\0replication\0" in first else _forward
        for way, source, sink in ((_forward, client, server), (answer, server, client)):
            self._threads.append(threading.Thread(target=_quietly, args=(way, source, sink), daemon=True))
            self._threads[-1].start()

    def _watch(self, server: socket.socket, client: socket.socket) -> None:
        """Read message by message: a type, a length that includes itself, the content."""
        reader = server.makefile("rb")
        while head := reader.read(5):
            content = reader.read(struct.unpack("!I", head[1:])[0] - 4)
            tamper, data = self._tamper, head + content
            is_wanted = head[:1] == b"d" and content[:1] == b"w" and content[_XLOG_HEADER_BYTES:][:1] in self._kinds
            if is_wanted and tamper is not None:
                self._tamper = None
                data = tamper(content)
            client.sendall(data)


def _first_packet(client: socket.socket, server: socket.socket) -> bytes:
    """The start-up packet; preceding encryption requests get a one-byte answer."""
    while True:
        packet = client.recv(4096)
        server.sendall(packet)
        if len(packet) != _QUESTION_BYTES:
            return packet
        client.sendall(server.recv(1))


def _forward(source: socket.socket, sink: socket.socket) -> None:
    while data := source.recv(65536):
        sink.sendall(data)


def _quietly(way: Callable[[socket.socket, socket.socket], None], source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError, ValueError):
        way(source, sink)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
