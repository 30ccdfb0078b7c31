"""Sessions of signed-in browsers, kept on the server: a sign-out revokes one, a new token revokes all of them.

A cookie holds the time at which its session ends, and random bytes. For each session there is one empty file in the
state folder, named after that time and the HMAC of the cookie under the token. So sessions survive a restart of the
dashboard, all dashboards of the same config share them, none is valid under another token, and neither cookie nor token
can be computed from the files. If the folder cannot be written, sessions are kept in memory and end with the process.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from contextlib import suppress
from pathlib import Path

from cdc.logs import get_logger
from cdc.secrets import Secret

log = get_logger("sessions")

SESSION_SECONDS = 12 * 3600
_RANDOM_BYTES = 32
_LONGEST_COOKIE = 64


class Sessions:
    """The sessions of one pipeline's dashboards. `folder`: where their files are. `token`: the dashboard's token."""

    def __init__(self, folder: Path, token: Secret) -> None:
        self._folder = folder
        self._key = token.reveal().encode()
        self._in_memory: set[str] = set()

    def begin(self, now: float | None = None) -> str:
        """Begin a session and return the value of its cookie."""
        now = time.time() if now is None else now
        self._delete_ended(now)
        value = f"{int(now) + SESSION_SECONDS}.{secrets.token_urlsafe(_RANDOM_BYTES)}"
        name = self._name(value)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._folder / name).touch(mode=0o600)
        except OSError as error:
            log.warning("session_not_written", reason=error.strerror)
            self._in_memory.add(name)
        return value

    def is_valid(self, value: str, now: float | None = None) -> bool:
        """Return whether the cookie belongs to a session that has not ended."""
        ends = _ends(value)
        if ends is None or ends <= (time.time() if now is None else now):
            return False
        name = self._name(value)
        return name in self._in_memory or (self._folder / name).exists()

    def end(self, value: str) -> None:
        """End the session. Raises OSError if its file cannot be deleted: the session is then still valid."""
        if _ends(value) is not None:
            name = self._name(value)
            self._in_memory.discard(name)
            with suppress(FileNotFoundError, NotADirectoryError):
                (self._folder / name).unlink()

    def _delete_ended(self, now: float) -> None:
        self._in_memory = {name for name in self._in_memory if (_ends(name) or 0) > now}
        with suppress(OSError):
            for path in self._folder.iterdir():
                if (_ends(path.name) or 0) <= now:
                    path.unlink()

    def _name(self, value: str) -> str:
        proof = hmac.new(self._key, f"tailrace session {value}".encode(), hashlib.sha256).hexdigest()
        return f"{_ends(value)}.{proof}"


def _ends(text: str) -> int | None:
    """Return the end time in a cookie or a file name; None if the text is neither."""
    ends, dot, rest = text.partition(".")
    if text.isascii() and ends.isdigit() and dot and 0 < len(rest) <= _LONGEST_COOKIE and len(ends) <= 12:
        return int(ends)
    return None
