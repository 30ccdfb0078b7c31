"""ASGI middleware that checks access for every request and adds security headers to every response."""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cdc.monitoring.web.access import Access

# Paths that need no token: the login page, its assets, and the probes.
_OPEN = ("/login", "/healthz", "/readyz", "/assets/login.css", "/assets/look.css", "/assets/icon.svg")
_HOST = re.compile(r"(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.IGNORECASE)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: with it a browser sends `Origin: null` with the dashboard's own forms.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RequestGuard:
    """The middleware. `access` decides which requests may pass."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(Request(scope), scope["path"])
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request, path: str) -> Response | None:
        """Return the response to a request that may not pass; None if it may.

        `path` is the path that the router uses. `request.url` contains the Host header, so it must not be used here.
        """
        if not has_valid_host(request.headers):
            return PlainTextResponse("The Host header is not valid.\n", status_code=400)
        if not self._access.has_allowed_host(request.headers):
            return PlainTextResponse("This server does not serve the host in the Host header.\n", status_code=421)
        if request.method not in ("GET", "HEAD") and not self._access.is_same_origin(request.headers, required=False):
            return JSONResponse({"error": "The request comes from another site."}, status_code=403)
        if path in _OPEN or self._access.may_see(request.headers, request.cookies):
            return None
        if path == "/" and _wants_page(request.headers):
            return RedirectResponse("/login", status_code=303)
        return JSONResponse(
            {"error": "A token is required."}, status_code=401, headers={"WWW-Authenticate": 'Bearer realm="tailrace"'}
        )


def has_valid_host(headers: Headers) -> bool:
    """Return whether there is at most one Host header, with a name or an address and an optional port.

    See RFC 9112, section 3.2.
    """
    hosts = headers.getlist("host")
    return not hosts or (len(hosts) == 1 and _HOST.fullmatch(hosts[0]) is not None)


def _wants_page(headers: Headers) -> bool:
    return "text/html" in headers.get("accept", "")
