"""Who may see and who may act: a token in a header or in a cookie that was given for it, never in a URL. Pure.

Without a token everybody on this machine may look, and nobody may act. What acts must come from our own page: a cookie
is not enough without the same origin, so that another site cannot act through a visitor's browser.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Mapping

from cdc.config.seeing import is_loopback
from cdc.secrets import Secret

COOKIE = "tailrace"
_PORT = re.compile(r":[0-9]*\Z")
SESSION_SECONDS = 7 * 86_400


class Access:
    def __init__(self, token: Secret | None) -> None:
        self._token = token

    @property
    def is_open(self) -> bool:
        return self._token is None

    def knows(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.reveal().encode())

    def session(self, now: float | None = None) -> str:
        """A cookie's value: when it ends, and a proof that whoever made it knew the token."""
        ends = int((time.time() if now is None else now) + SESSION_SECONDS)
        return f"{ends}.{self._proof(ends)}"

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
        ends, _, proof = cookies.get(COOKIE, "").partition(".")
        if not (ends.isascii() and ends.isdigit() and len(ends) < 16):
            return False
        return hmac.compare_digest(proof.encode(), self._proof(int(ends)).encode()) and time.time() < int(ends)

    def _proof(self, ends: int) -> str:
        token = self._token.reveal() if self._token is not None else ""
        return hmac.new(token.encode(), f"tailrace session {ends}".encode(), hashlib.sha256).hexdigest()
