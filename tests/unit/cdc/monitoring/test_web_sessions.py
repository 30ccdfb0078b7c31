"""Signing in to the dashboard and out: what is read before the token is checked, and how long a session lasts."""

from __future__ import annotations

import contextlib
import http.client
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from cdc.monitoring.web.sessions import SESSION_SECONDS, Sessions
from cdc.secrets import Secret
from tests.harness.dashboard.client import Visitor
from tests.harness.dashboard.page_server import PageServer, serving
from tests.harness.dashboard.sample_statuses import idle, shop_config

TOKEN = "a-token-of-tests-0123"
OTHER_TOKEN = "another-token-of-tests"


@contextmanager
def _served(folder: Path, token: str = TOKEN) -> Iterator[PageServer]:
    config = shop_config(folder, f'\n[dashboard]\ntoken = "{token}"\n')
    with serving(config, idle(config)) as server:
        yield server


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[PageServer]:
    with _served(tmp_path) as server:
        yield server


def _sign_in(server: PageServer, token: str = TOKEN) -> str:
    return Visitor(server.url).post("/login", f"token={token}".encode()).headers["Set-Cookie"].partition(";")[0]


def _sees(server: PageServer, cookie: str) -> bool:
    return Visitor(server.url).get("/api/state", Cookie=cookie).status == 200


# -- what is read before the token is known -----------------------------------------------------------------------


def test_a_login_with_a_large_content_length_is_refused_unread(locked: PageServer) -> None:
    """A large Content-Length gives 413 before the body is sent."""
    connection = http.client.HTTPConnection("127.0.0.1", locked.port, timeout=20)
    connection.putrequest("POST", "/login")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_a_login_without_a_length_is_read_no_further_than_a_token_is_long(locked: PageServer) -> None:
    """An endless chunked body is refused and the connection closed while the client still sends."""
    with socket.create_connection(("127.0.0.1", locked.port), timeout=20) as client:
        client.sendall(b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
        with contextlib.suppress(OSError):
            for _ in range(4):
                client.sendall(chunk)
        assert client.recv(64).startswith(b"HTTP/1.1 413")


def test_a_login_that_is_never_finished_does_not_keep_its_connection(
    locked: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that stops half-way gets an answer after a time limit, and the connection is closed."""
    monkeypatch.setattr("cdc.monitoring.web.server._LOGIN_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", locked.port), timeout=20) as client:
        client.sendall(b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\ntoken=")
        assert client.recv(64).startswith(b"HTTP/1.1 408")
        while client.recv(4096):
            pass


def test_a_body_where_none_is_wanted_is_not_read(locked: PageServer) -> None:
    """Every other POST is answered before its body has arrived."""
    for path, status in (("/logout", b"303"), ("/api/stores/nothing/pause", b"404")):
        with socket.create_connection(("127.0.0.1", locked.port), timeout=20) as client:
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
            client.sendall(f"{head}Content-Length: {1 << 40}\r\n\r\nbegun".encode())
            assert client.recv(64).split()[1] == status, path


# -- sessions -----------------------------------------------------------------------------------------------------


def test_a_session_that_was_signed_out_is_over_on_the_server(locked: PageServer) -> None:
    """After a sign-out a copy of the cookie is refused, and another session of the same token continues."""
    mine, other = _sign_in(locked), _sign_in(locked)
    assert mine != other
    assert _sees(locked, mine)
    left = Visitor(locked.url).post("/logout", Cookie=mine, Origin=locked.url)
    assert (left.status, left.headers["Location"]) == (303, "/login")
    assert "Max-Age=0" in left.headers["Set-Cookie"]
    assert (_sees(locked, mine), _sees(locked, other)) == (False, True)


def test_a_stream_of_events_ends_with_its_session(locked: PageServer) -> None:
    """An open event stream ends when its session is signed out anywhere."""
    cookie = _sign_in(locked)
    with Visitor(locked.url).stream("/api/events", Cookie=cookie) as lines:
        first = list(islice((line for line in lines if line.startswith("data: ")), 1))
        assert first
        assert Visitor(locked.url).post("/logout", Cookie=cookie, Origin=locked.url).status == 303
        list(lines)  # ends


def test_a_session_survives_a_restart_of_the_dashboard_and_not_a_new_token(tmp_path: Path) -> None:
    """A session survives a restart but not a new token, and a sign-out is remembered."""
    with _served(tmp_path) as server:
        kept, left = _sign_in(server), _sign_in(server)
        Visitor(server.url).post("/logout", Cookie=left, Origin=server.url)
    with _served(tmp_path) as server:
        assert (_sees(server, kept), _sees(server, left)) == (True, False)
    with _served(tmp_path, OTHER_TOKEN) as server:
        assert not _sees(server, kept)


def test_sessions_of_two_dashboards_of_one_config_are_the_same(tmp_path: Path) -> None:
    """A sign-out at one dashboard also ends the session at the other."""
    with _served(tmp_path) as one, _served(tmp_path) as two:
        cookie = _sign_in(one)
        assert _sees(two, cookie)
        Visitor(two.url).post("/logout", Cookie=cookie, Origin=two.url)
        assert not _sees(one, cookie)


def test_a_session_ends_by_itself(tmp_path: Path) -> None:
    """A session ends after half a day, also on the server, and is deleted at the next sign-in."""
    sessions = Sessions(tmp_path / "sessions", Secret(TOKEN))
    now = time.time()
    assert SESSION_SECONDS <= 12 * 3600
    value = sessions.begin(now)
    assert sessions.is_valid(value, now + SESSION_SECONDS - 1)
    assert not sessions.is_valid(value, now + SESSION_SECONDS)
    _, dot, secret = value.partition(".")
    longer = f"{int(now) + 2 * SESSION_SECONDS}{dot}{secret}"
    assert not sessions.is_valid(longer, now)
    sessions.begin(now + SESSION_SECONDS)
    assert len(list((tmp_path / "sessions").iterdir())) == 1


def test_what_is_kept_of_a_session_is_not_its_cookie(tmp_path: Path) -> None:
    """The files of sessions cannot be listed by other users, and their names do not open a session."""
    folder = tmp_path / "sessions"
    sessions = Sessions(folder, Secret(TOKEN))
    value = sessions.begin()
    secret = value.partition(".")[2]
    for path in folder.iterdir():
        assert secret not in path.name
        assert not sessions.is_valid(path.name)
        assert path.read_bytes() == b""
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())


@pytest.mark.parametrize(
    "value", ["", ".", "..", "/etc/passwd", "../x", "é", "\x00", "0" * 100_000, "1999999999.00", "²." + "a" * 43]
)
def test_a_cookie_that_no_sign_in_gave_opens_nothing(tmp_path: Path, value: str) -> None:
    """A cookie with a path, a huge text or an older release's value is refused."""
    sessions = Sessions(tmp_path / "sessions", Secret(TOKEN))
    sessions.begin()
    assert not sessions.is_valid(value)
    sessions.end(value)
    assert len(list((tmp_path / "sessions").iterdir())) == 1


def test_sessions_work_where_nothing_can_be_written(tmp_path: Path) -> None:
    """On a read-only disk sessions are kept in memory, and end with the process or a sign-out."""
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    sessions = Sessions(tmp_path / "file" / "sessions", Secret(TOKEN))
    value = sessions.begin()
    assert sessions.is_valid(value)
    sessions.end(value)
    assert not sessions.is_valid(value)
