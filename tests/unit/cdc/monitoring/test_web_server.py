"""Access to the dashboard: who may read, who may act, and what answers contain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from cdc.monitoring.status_record import HealthLevel
from tests.harness.dashboard.client import Visitor
from tests.harness.dashboard.page_server import PageServer, serving
from tests.harness.dashboard.sample_statuses import busy, idle, shop_config, store_down
from tests.harness.processes.waiting import eventually

TOKEN = "a-token-of-tests-0123"
_TOKEN_SECTION = f'\n[dashboard]\ntoken = "{TOKEN}"\n'
_SEEN = ("/api/state", "/api/history", "/api/events", "/api/openapi.json", "/metrics", "/", "/assets/main.js")
_ACTS = tuple(f"/api/stores/cache/{kind}" for kind in ("pause", "resume", "audit", "retry-parked"))


@contextmanager
def _served(folder: Path, more: str = "") -> Iterator[PageServer]:
    config = shop_config(folder, more)
    with serving(config, idle(config)) as server:
        yield server


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[PageServer]:
    with _served(tmp_path, _TOKEN_SECTION) as server:
        yield server


def test_without_the_token_nothing_is_seen_and_nothing_done(locked: PageServer) -> None:
    """Without the token everything but the login and the probes gives 401; a browser is redirected to the login."""
    stranger, liar = Visitor(locked.url), Visitor(locked.url, "a-token-of-tests-9999")
    for path in _SEEN:
        assert (stranger.get(path).status, liar.get(path).status) == (401, 401), path
    for path in _ACTS:
        assert (stranger.post(path).status, liar.post(path).status) == (401, 401), path
    assert [stranger.get(path).status for path in ("/healthz", "/readyz", "/login")] == [200, 200, 200]
    led = stranger.get("/", Accept="text/html")
    assert (led.status, led.headers["Location"]) == (303, "/login")
    assert stranger.post("/login", b"token=wrong").status == 401
    assert stranger.get("/api/state?token=" + TOKEN).status == 401


def test_with_the_token_everything_is_seen_by_header_or_by_cookie(locked: PageServer) -> None:
    """The token works by header or by cookie; the cookie is not the token and is HttpOnly and SameSite."""
    friend = Visitor(locked.url, TOKEN)
    assert [friend.get(path).status for path in _SEEN if path != "/api/events"] == [200] * (len(_SEEN) - 1)
    signed_in = Visitor(locked.url).post("/login", f"token={TOKEN}".encode())
    cookie = signed_in.headers["Set-Cookie"]
    assert signed_in.status == 303
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    session = cookie.partition(";")[0]
    assert Visitor(locked.url).get("/api/state", Cookie=session).status == 200
    assert (
        Visitor(locked.url).get("/api/state", Cookie=session[:-1] + ("0" if session[-1] != "0" else "1")).status == 401
    )


def test_what_acts_needs_post_the_token_and_the_same_origin(locked: PageServer) -> None:
    """A cookie alone, another origin, or a GET cannot act."""
    friend = Visitor(locked.url, TOKEN)
    session = friend.post("/login", f"token={TOKEN}".encode()).headers["Set-Cookie"].partition(";")[0]
    browser = Visitor(locked.url)
    for path in _ACTS:
        assert friend.get(path).status == 405
        assert browser.post(path, Cookie=session).status == 403
        assert browser.post(path, Cookie=session, Origin="http://elsewhere.example").status == 403
        assert friend.post(path, Origin="http://elsewhere.example").status == 403
    # With all three it is tried: there is no such store, and no such action.
    assert browser.post("/api/stores/nothing/pause", Cookie=session, Origin=locked.url).status == 404
    assert friend.post("/api/stores/cache/destroy").status == 404


def test_without_a_configured_token_one_may_look_and_not_act(tmp_path: Path) -> None:
    """Without a configured token, requests under this machine's own names may read and not act."""
    with _served(tmp_path) as server:
        visitor = Visitor(server.url)
        assert visitor.get("/api/state").json["can_act"] is False
        assert [visitor.post(path, Origin=server.url).status for path in _ACTS] == [403] * len(_ACTS)
        assert visitor.get("/api/state", Host="evil.example").status == 421


def test_every_answer_carries_the_policy(locked: PageServer) -> None:
    """Every answer forbids other origins' content, caching and frames."""
    for path in ("/login", "/healthz", "/api/state", "/nothing-here"):
        headers = Visitor(locked.url).get(path).headers
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_ready_is_red_when_something_stands_still_and_alive_is_not(tmp_path: Path) -> None:
    """A stalled hop makes readiness fail and liveness not, since a restart of the dashboard would not help."""
    config = shop_config(tmp_path)
    with serving(config, store_down(config)) as server:
        visitor = Visitor(server.url)
        assert (visitor.get("/healthz").status, visitor.get("/readyz").status) == (200, 503)
        assert "store cache: down" in visitor.get("/readyz").text
        server.shown.record = busy(config)
        eventually(lambda: visitor.get("/readyz").status == 200, what="ready again")


def test_events_bring_each_new_reading(locked: PageServer) -> None:
    """The event stream sends each new state as a whole."""
    with Visitor(locked.url, TOKEN).stream("/api/events") as lines:
        found = islice((line[6:] for line in lines if line.startswith("data: ")), 2)
        states = [json.loads(each) for each in found]
    assert [each["record"]["prefix"] for each in states] == ["shop", "shop"]
    assert states[0]["record"]["read_at"] < states[1]["record"]["read_at"]


def test_the_api_is_as_its_description_says(locked: PageServer) -> None:
    """The schema and the state have exactly the same members."""
    friend = Visitor(locked.url, TOKEN)
    schemas = friend.get("/api/openapi.json").json["components"]["schemas"]
    state = friend.get("/api/state").json
    assert set(state) == set(schemas["State"]["properties"])
    assert set(state["record"]) == set(schemas["PipelineStatus"]["properties"])
    for name, kind in (("source", "SourceStatus"), ("slot", "SlotStatus"), ("topics", "TopicsStatus")):
        assert set(state["record"][name]) == set(schemas[kind]["properties"])
    assert set(state["record"]["stores"][0]) == set(schemas["StoreStatus"]["properties"])
    assert set(schemas["State"]["properties"]) >= {"record", "journal", "actions"}
    assert schemas["Health"]["properties"]["state"]["enum"] == [each.value for each in HealthLevel]
    assert [friend.get(f"/api/history?minutes={minutes}").status for minutes in ("x", "0", "1e9")] == [400] * 3
