"""Access control of the dashboard: a bearer token in a header, or a session cookie. Never a token in a URL.

Without a configured token, every client on this machine may read, and none may run actions. An action with a cookie
must also come from the dashboard's own origin, so that another site cannot run it through a visitor's browser.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from pathlib import Path

from cdc.config.monitoring import is_loopback
from cdc.monitoring.web.sessions import Sessions
from cdc.secrets import Secret

COOKIE = "tailrace"
_PORT = re.compile(r":[0-9]*\Z")


class Access:
    """Checks requests. `sessions` is None if no token is configured."""

    def __init__(self, token: Secret | None, folder: Path) -> None:
        """`folder`: where the session files are."""
        self._token = token
        self.sessions = None if token is None else Sessions(folder, token)

    @property
    def is_open(self) -> bool:
        """Whether no token is configured."""
        return self._token is None

    def is_token(self, given: str) -> bool:
        """Return whether this is the token. The comparison takes constant time."""
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.reveal().encode())

    def may_see(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> bool:
        """Return whether the request may read."""
        return self.is_open or self._bears(headers) or self._has_session(cookies)

    def may_act(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> bool:
        """Return whether the request may run an action.

        A program sends the token. A browser sends its session cookie, and must come from the dashboard's own page.
        """
        if self.is_open or not self.is_same_origin(headers, required=False):
            return False
        return self._bears(headers) or (self._has_session(cookies) and self.is_same_origin(headers, required=True))

    def is_same_origin(self, headers: Mapping[str, str], *, required: bool) -> bool:
        """Return whether the browser's headers say that the request comes from the dashboard's own page.

        A program sends no such headers: the result is then `not required`.
        """
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin, host = headers.get("origin"), headers.get("host", "").lower()
        if origin is None:
            return not required
        return bool(host) and origin.lower() in (f"http://{host}", f"https://{host}")

    def has_allowed_host(self, headers: Mapping[str, str]) -> bool:
        """Return whether the Host header is allowed. Without a token it must be a loopback name or address.

        Another site can let its own name resolve to this machine (DNS rebinding).
        """
        return not self.is_open or is_loopback(_PORT.sub("", headers.get("host", "")).strip("[]").lower())

    def _bears(self, headers: Mapping[str, str]) -> bool:
        kind, _, value = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self.is_token(value.strip())

    def _has_session(self, cookies: Mapping[str, str]) -> bool:
        return self.sessions is not None and self.sessions.is_valid(cookies.get(COOKIE, ""))
