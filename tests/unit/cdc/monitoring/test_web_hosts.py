"""A client's `Host` header neither grants access to the dashboard nor redirects to another host."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.datastructures import URL
from starlette.requests import HTTPConnection

from tests.harness.dashboard.page_server import PageServer, serving
from tests.harness.dashboard.sample_statuses import idle, shop_config

TOKEN = "a-token-of-tests-0123"
_CLOSED = ("/api/state", "/metrics", "/api/history", "/api/openapi.json", "/", "/assets/main.js")
# Each would make a URL that is put together from it end in a path that needs no token.
_CRAFTED = ("x/login?", "x/login#", "x/healthz?", "x/readyz?a=", "x/assets/look.css?", "127.0.0.1/login?", "x\\login?")
_MALFORMED = (*_CRAFTED, "user@127.0.0.1", "[::1", "[", "a b", "127.0.0.1:port", "a,b", "\x80")


@pytest.fixture
def urls_by_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """`request.url` as starlette up to 1.0.0 builds it from the Host header (CVE-2026-48710)."""

    def url(self: HTTPConnection) -> URL:
        return URL(f"{self.scope['scheme']}://{self.headers.get('host', '')}{self.scope['path']}")

    monkeypatch.setattr(HTTPConnection, "url", property(url))


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[PageServer]:
    config = shop_config(tmp_path, f'\n[dashboard]\ntoken = "{TOKEN}"\n')
    with serving(config, idle(config)) as server:
        yield server


@pytest.fixture
def unlocked(tmp_path: Path) -> Iterator[PageServer]:
    config = shop_config(tmp_path)
    with serving(config, idle(config)) as server:
        yield server


def _ask(server: PageServer, path: str, *hosts: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for host in hosts:
        connection.putheader("Host", host.encode("latin-1"))
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


@pytest.mark.usefixtures("urls_by_host")
def test_a_crafted_host_is_no_way_round_the_token(locked: PageServer) -> None:
    """A crafted Host header does not avoid the token, under any version of starlette."""
    for host in _CRAFTED:
        for path in _CLOSED:
            assert _ask(locked, path, host).status in (400, 401), (host, path)
        acted = _ask(locked, "/api/stores/cache/pause", host, method="POST")
        assert acted.status in (400, 401), host


def test_a_malformed_host_is_a_bad_request(locked: PageServer) -> None:
    """A malformed host, or two of them, gives 400, also with the token."""
    for host in _MALFORMED:
        assert _ask(locked, "/api/state", host, Authorization=f"Bearer {TOKEN}").status == 400, host
    assert _ask(locked, "/healthz", "127.0.0.1", "127.0.0.1").status == 400


def test_an_ordinary_host_is_answered(locked: PageServer) -> None:
    """With a token any valid host name is accepted, since a proxy may pass on its own; underscores are common."""
    for host in ("tailrace.example.com", "10.0.0.7:8787", "[2001:db8::1]:8787", "my_dashboard:8787", "LOCALHOST"):
        assert _ask(locked, "/api/state", host, Authorization=f"Bearer {TOKEN}").status == 200, host


def test_without_a_token_only_names_of_this_machine_are_answered(unlocked: PageServer) -> None:
    """Without a token, other host names that resolve to this machine and a missing one are refused."""
    for host in ("127.0.0.1", f"localhost:{unlocked.port}", "LocalHost", "[::1]:8787"):
        assert _ask(unlocked, "/api/state", host).status == 200, host
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8787", "0.0.0.0"):  # noqa: S104
        assert _ask(unlocked, "/api/state", host).status == 421, host
        acted = _ask(unlocked, "/api/stores/cache/pause", host, method="POST", Origin=f"http://{host}")
        assert acted.status == 421, host
    assert _ask(unlocked, "/api/state").status in (400, 421)


def test_no_answer_leads_to_where_the_host_says(locked: PageServer) -> None:
    """Redirects contain a path only, and a trailing slash gives no redirect."""
    led = _ask(locked, "/", "evil.example", Accept="text/html")
    assert (led.status, led.headers["Location"]) == (303, "/login")
    for path in ("/login/", "/api/state/", "/assets", "/assets/"):
        strayed = _ask(locked, path, "evil.example", Authorization=f"Bearer {TOKEN}")
        assert (strayed.status, strayed.headers["Location"]) == (404, None), path


def test_a_page_of_another_site_acts_on_nothing(locked: PageServer) -> None:
    """A request from another site's page cannot act, with the cookie, with the token or without an Origin header."""
    body = f"token={TOKEN}"
    connection = http.client.HTTPConnection("127.0.0.1", locked.port, timeout=20)
    connection.request("POST", "/login", body=body)
    cookie = connection.getresponse().headers["Set-Cookie"].partition(";")[0]
    connection.close()
    own = f"127.0.0.1:{locked.port}"
    foreign: tuple[dict[str, str], ...] = (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": f"http://{own}"},
    )
    for headers in foreign:
        for shown in ({"Cookie": cookie}, {"Authorization": f"Bearer {TOKEN}"}):
            answer = _ask(locked, "/api/stores/nothing/pause", own, method="POST", **headers, **shown)
            assert answer.status == 403, (headers, shown)
    ours = {"Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin", "Cookie": cookie}
    assert _ask(locked, "/api/stores/nothing/pause", own, method="POST", **ours).status == 404
