"""Who may see and who may act: a token in a header, or the cookie of a session that was begun with it, never a URL.

Without a token everybody on this machine may look, and nobody may act. What acts must come from our own page: a cookie
is not enough without the same origin, so that another site cannot act through a visitor's browser.
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
    """`sessions` is None where there is no token to sign in with."""

    def __init__(self, token: Secret | None, folder: Path) -> None:
        """`folder`: where sessions are kept."""
        self._token = token
        self.sessions = None if token is None else Sessions(folder, token)

    @property
    def is_open(self) -> bool:
        return self._token is None

    def knows(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.reveal().encode())

    def may_see(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> bool:
        return self.is_open or self._bears(headers) or self._has_session(cookies)

    def may_act(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> bool:
        """A program shows the token itself; a browser has its cookie and must come from our page."""
        if self.is_open or not self.is_same_origin(headers, required=False):
            return False
        return self._bears(headers) or (self._has_session(cookies) and self.is_same_origin(headers, required=True))

    def is_same_origin(self, headers: Mapping[str, str], *, required: bool) -> bool:
        """By what the browser says of the page that asks. A program says nothing: `required` then refuses it."""
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin, host = headers.get("origin"), headers.get("host", "").lower()
        if origin is None:
            return not required
        return bool(host) and origin.lower() in (f"http://{host}", f"https://{host}")

    def is_asked_by_name(self, headers: Mapping[str, str]) -> bool:
        """Without a token: only under a name of this machine. Another site's name may be made to point here."""
        return not self.is_open or is_loopback(_PORT.sub("", headers.get("host", "")).strip("[]").lower())

    def _bears(self, headers: Mapping[str, str]) -> bool:
        kind, _, value = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self.knows(value.strip())

    def _has_session(self, cookies: Mapping[str, str]) -> bool:
        return self.sessions is not None and self.sessions.is_valid(cookies.get(COOKIE, ""))
