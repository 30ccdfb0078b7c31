"""Each fault of the proxy is one that a program meets on a real network."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.harness.network.proxy import Proxy
from tests.harness.processes.waiting import eventually

StartProxy = Callable[[str, int], Proxy]


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_echo, args=(connection,), daemon=True).start()


def _echo(connection: socket.socket) -> None:
    with connection:
        try:
            while data := connection.recv(65536):
                connection.sendall(data)
        except OSError:
            return


def _connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout=10)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, f"the connection ended after {len(data)} of {size} bytes"
        data += piece
    return data


def _is_silent(connection: socket.socket) -> bool:
    connection.settimeout(0.1)
    try:
        connection.recv(1)
        return False
    except TimeoutError:
        return True
    finally:
        connection.settimeout(10)


def test_everything_is_forwarded_and_counted(echo_port: int, start_proxy: StartProxy) -> None:
    """Bytes pass unchanged in both directions, an orderly end included, and are counted."""
    proxy = start_proxy("127.0.0.1", echo_port)
    data = bytes(range(256)) * 4096
    with _connect(proxy) as connection:
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        assert _read(connection, len(data)) == data
        sender.join()
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert (proxy.bytes_to_server, proxy.bytes_to_client) == (len(data), len(data))


def test_cut_resets_and_refuses_until_restored(echo_port: int, start_proxy: StartProxy) -> None:
    """After a cut, open connections are reset and new ones refused; restored, the same port works again."""
    proxy = start_proxy("127.0.0.1", echo_port)
    with _connect(proxy) as connection:
        connection.sendall(b"x")
        _read(connection, 1)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionRefusedError):
        _connect(proxy)
    proxy.restore()
    with _connect(proxy) as connection:
        connection.sendall(b"y")
        assert _read(connection, 1) == b"y"


def test_blackhole_keeps_connections_open_and_silent(echo_port: int, start_proxy: StartProxy) -> None:
    """Nothing arrives and nothing breaks; restored, what was on its way is delivered."""
    proxy = start_proxy("127.0.0.1", echo_port)
    with _connect(proxy) as connection:
        connection.sendall(b"x")
        _read(connection, 1)
        proxy.blackhole()
        connection.sendall(b"y")
        assert _is_silent(connection)
        with _connect(proxy) as newcomer:
            newcomer.sendall(b"z")
            assert _is_silent(newcomer)
            proxy.restore()
            assert _read(newcomer, 1) == b"z"
        assert _read(connection, 1) == b"y"


def test_delay_and_limit_hold_bytes_back(echo_port: int, start_proxy: StartProxy) -> None:
    """Under a delay or a limit the bytes do come, later; restored, they come at once."""
    proxy = start_proxy("127.0.0.1", echo_port)
    with _connect(proxy) as connection:
        proxy.delay(0.3)
        connection.sendall(b"x")
        assert _is_silent(connection)
        assert _read(connection, 1) == b"x"
        proxy.restore()
        proxy.limit(1_000)
        connection.sendall(bytes(10_000))
        eventually(lambda: proxy.bytes_to_server > 0, what="the first piece")
        assert proxy.bytes_to_server < 10_000
        proxy.restore()
        _read(connection, 10_000)


def test_a_server_that_is_away_breaks_the_connection(start_proxy: StartProxy) -> None:
    """Without a server behind the proxy, a client gets a broken connection and not silence."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and not listening; given back, the port could become the proxy's own
        proxy = start_proxy("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConnectionResetError), _connect(proxy) as connection:  # or already while connecting
            connection.recv(1)
