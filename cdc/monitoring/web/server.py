"""The web server: the page, its JSON API and event stream, `/metrics`, `/healthz` and `/readyz`.

GET changes nothing. Actions are POST requests and need the token (`access`). The page loads everything from this
server; its content security policy forbids all other hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from cdc import __version__
from cdc.config import Config
from cdc.errors import TailraceError, UsageError
from cdc.logs import get_logger
from cdc.monitoring.state_folder import state_folder
from cdc.monitoring.web.access import COOKIE, Access
from cdc.monitoring.web.actions import Actions
from cdc.monitoring.web.metrics import exposition
from cdc.monitoring.web.openapi import openapi_description
from cdc.monitoring.web.request_guard import RequestGuard
from cdc.monitoring.web.sessions import SESSION_SECONDS
from cdc.monitoring.web.status_poller import StatusPoller

log = get_logger("dashboard")

_PAGE = Path(__file__).parent / "page"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_POLL_SECONDS = 0.2
_KEEPALIVE_SECONDS = 15.0
_LONGEST_HISTORY_MINUTES = 8 * 24 * 60
# The delay after a wrong token. It slows down guessing.
_WRONG_TOKEN_SECONDS = 0.5
# Limits of the login form. The server reads it before the client has authenticated.
_LOGIN_BYTES, _LOGIN_SECONDS = 4096, 10.0
_CLOSE = {"Connection": "close"}
# `/readyz` fails if the last poll is older than this many intervals, and older than this many seconds.
_STALE_INTERVALS, _STALE_SECONDS = 5, 15.0

Endpoint = Callable[[Request], Awaitable[Response]]


class Json(Response):
    """A JSON response."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


class DashboardServer:
    """The web server. `app` is the ASGI application. `closing` is set at shutdown, so that the event streams end."""

    def __init__(self, config: Config, watch: StatusPoller, actions: Actions) -> None:
        self._config = config
        self._watch = watch
        self._actions = actions
        self._access = Access(config.dashboard.token, state_folder(config) / f"sessions-{config.kafka.prefix}")
        self.closing = False
        routes = [
            Route("/", self._page),
            Route("/login", self._login_page),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/healthz", self._alive),
            Route("/readyz", self._ready),
            Route("/metrics", self._metrics),
            Route("/api/openapi.json", self._openapi),
            Route("/api/state", self._state),
            Route("/api/history", self._history),
            Route("/api/events", self._events),
            Route("/api/stores/{store}/{kind}", self._act, methods=["POST"]),
            Mount("/assets", StaticFiles(directory=_PAGE / "assets")),
        ]
        self.app = Starlette(routes=routes, middleware=[Middleware(RequestGuard, access=self._access)])
        # A redirect that adds or removes a slash would contain the host of the request's Host header.
        self.app.router.redirect_slashes = False

    # -- pages ---------------------------------------------------------------------------------------------------

    async def _page(self, _request: Request) -> Response:
        return FileResponse(_PAGE / "index.html")

    async def _login_page(self, _request: Request) -> Response:
        return FileResponse(_PAGE / "login.html")

    async def _login(self, request: Request) -> Response:
        try:
            body = await asyncio.wait_for(_read_body(request), _LOGIN_SECONDS)
        except asyncio.TimeoutError:
            return PlainTextResponse("The form did not arrive.\n", status_code=408, headers=_CLOSE)
        except ClientDisconnect:
            return PlainTextResponse("", status_code=400)
        if body is None:
            return PlainTextResponse("The form is too long.\n", status_code=413, headers=_CLOSE)
        sessions = self._access.sessions
        if sessions is None or not self._access.is_token(_form_value(body, "token")):
            await asyncio.sleep(_WRONG_TOKEN_SECONDS)
            return FileResponse(_PAGE / "login.html", status_code=401)
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(
            COOKIE,
            sessions.begin(),
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.scope["scheme"] == "https",
        )
        return response

    async def _logout(self, request: Request) -> Response:
        """End the session on the server. Also ask the browser to delete the cookie."""
        if self._access.sessions is not None:
            try:
                self._access.sessions.end(request.cookies.get(COOKIE, ""))
            except OSError as error:
                log.error("session_not_ended", reason=error.strerror)
                return _problem(500, "The session could not be ended: see the dashboard's log.")
        response = RedirectResponse("/login", status_code=303)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response

    # -- API -----------------------------------------------------------------------------------------------------

    async def _alive(self, _request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def _ready(self, _request: Request) -> Response:
        """Return the state of each hop. No token is required, so the answer contains no reasons."""
        record, age = self._watch.latest, self._watch.age_seconds
        if record is None or age is None or age > max(_STALE_SECONDS, _STALE_INTERVALS * self._watch.interval_seconds):
            return PlainTextResponse("no recent status\n", status_code=503)
        lines = [f"{name}: {health.state.value}" for name, health in record.hops.items()]
        return PlainTextResponse("\n".join(lines) + "\n", status_code=200 if record.is_ready else 503)

    async def _metrics(self, _request: Request) -> Response:
        return Response(exposition(lambda: self._watch.latest), media_type=_METRICS_TYPE)

    async def _openapi(self, _request: Request) -> Response:
        return Json(openapi_description())

    async def _state(self, request: Request) -> Response:
        return Json(self._described(request))

    async def _history(self, request: Request) -> Response:
        try:
            minutes = float(request.query_params.get("minutes", "60"))
        except ValueError:
            minutes = 0.0
        if not 0 < minutes <= _LONGEST_HISTORY_MINUTES:
            return _problem(400, f"minutes must be a number greater than 0 and at most {_LONGEST_HISTORY_MINUTES}")
        now = self._watch.latest.read_at if self._watch.latest is not None else time.time()
        return Json(await run_in_threadpool(self._watch.history.read, now - minutes * 60, now))

    async def _events(self, request: Request) -> Response:
        return StreamingResponse(
            self._stream(request), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )

    async def _stream(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the status after each poll, as server-sent events."""
        seen, sent_at = -1, time.monotonic()
        yield b"retry: 2000\n\n"
        while not self.closing and not await request.is_disconnected():
            if not self._access.may_see(request.headers, request.cookies):
                return  # the user has signed out, or the session has ended
            if self._watch.number != seen:
                seen, sent_at = self._watch.number, time.monotonic()
                yield b"event: state\ndata: " + orjson.dumps(self._described(request)) + b"\n\n"
            elif time.monotonic() - sent_at > _KEEPALIVE_SECONDS:
                sent_at = time.monotonic()
                yield b": still here\n\n"
            await asyncio.sleep(_POLL_SECONDS)

    def _described(self, _request: Request) -> dict[str, Any]:
        record = self._watch.latest
        return {
            "version": __version__,
            "record": record.as_json() if record is not None else None,
            "age_seconds": self._watch.age_seconds,
            "interval_seconds": self._watch.interval_seconds,
            "max_seconds": self._config.lag.max_seconds,
            "journal": self._watch.journal.as_json(),
            "actions": self._actions.as_json(),
            "can_act": not self._access.is_open,
        }

    # -- actions -------------------------------------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        if self._access.is_open:
            return _problem(403, "Actions are disabled: set [dashboard] token, or run the command on a terminal.")
        if not self._access.may_act(request.headers, request.cookies):
            return _problem(403, "An action needs the token, or a session and the dashboard's own origin.")
        kind, store = request.path_params["kind"], request.path_params["store"]
        try:
            action = await run_in_threadpool(self._actions.do, kind, store)
        except UsageError as error:
            return _problem(404, error.message)
        except TailraceError as error:
            return _problem(409, error.message)
        return Json({"number": action.number, "kind": action.kind, "store": action.store}, status_code=202)


def _problem(status: int, message: str) -> Response:
    return Json({"error": message}, status_code=status)


async def _read_body(request: Request) -> bytes | None:
    """Read the body of a login; None if it is too long. The rest is then not read."""
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length[:20]) > _LOGIN_BYTES:
        return None
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LOGIN_BYTES:
            return None
    return body


def _form_value(body: bytes, name: str) -> str:
    with contextlib.suppress(ValueError):
        return parse_qs(body.decode(), max_num_fields=5).get(name, [""])[0]
    return ""
