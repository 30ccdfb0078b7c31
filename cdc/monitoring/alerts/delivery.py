"""Delivers alerts to the log and to the webhook, in order.

A thread of its own sends each alert until the receiver accepts it, or the alert is six hours old.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from typing import Any

from cdc.backoff import Backoff
from cdc.config import AlertsConfig
from cdc.logs import get_logger
from cdc.monitoring.alerts.alert_rules import Alert
from cdc.secrets import redact

log = get_logger("alerts")

_ANSWER_SECONDS = 10.0
_MOST_WAITING = 200
_TOO_OLD_SECONDS = 6 * 3600.0


class Delivery:
    """The queue of alerts and the thread that sends them. Without a webhook, alerts are only logged."""

    def __init__(self, settings: AlertsConfig) -> None:
        self._settings = settings
        self._waiting: deque[tuple[float, dict[str, Any]]] = deque(maxlen=_MOST_WAITING)
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)

    def start(self) -> None:
        if self._settings.webhook is not None:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._news.set()

    def deliver(self, alert: Alert) -> None:
        """Log the alert and queue it for the webhook."""
        plain = alert.as_json()
        say = log.warning if alert.event == "raised" else log.info
        say(f"alert_{alert.event}", **{name: plain[name] for name in ("where", "state", "reason", "remedy", "since")})
        self.post(plain)

    def post(self, message: dict[str, Any]) -> None:
        """Queue a message for the webhook, if there is one. A full queue drops its oldest message."""
        if self._settings.webhook is not None:
            self._waiting.append((time.monotonic(), message))
            self._news.set()

    def _run(self) -> None:
        backoff = Backoff(first_seconds=1.0, longest_seconds=60.0)
        while not self._stop.is_set():
            if not self._waiting:
                self._news.wait(1.0)
                self._news.clear()
                continue
            since, message = self._waiting[0]
            problem = self._send(message)
            if problem is None:
                backoff.reset()
            elif time.monotonic() - since < _TOO_OLD_SECONDS:
                pause = backoff.next_delay()
                log.warning("alert_not_delivered", reason=problem, seconds=pause)
                self._stop.wait(pause)
                continue
            else:
                log.error("alert_expired", reason=problem, where=message.get("where"))
            if self._waiting and self._waiting[0][1] is message:
                self._waiting.popleft()

    def _send(self, message: dict[str, Any]) -> str | None:
        """Send one message. Return the error, or None after a 2xx answer."""
        webhook = self._settings.webhook
        assert webhook is not None  # noqa: S101 - the thread is not started without a webhook
        request = urllib.request.Request(  # noqa: S310 - http or https: the config checks it
            webhook.reveal(),
            data=json.dumps(message).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "tailrace", **self._settings.headers},
        )
        try:
            with _OPENER.open(request, timeout=_ANSWER_SECONDS):
                return None
        except urllib.error.HTTPError as error:
            with error:
                return _refusal(error.code, error.headers.get("Location", ""))
        except (http.client.InvalidURL, ValueError):
            # The library's own message quotes the URL or the header.
            return "The URL or a header is not valid: correct [alerts] webhook or [alerts.headers]."
        except (OSError, http.client.HTTPException) as error:
            return redact(f"{type(error).__name__}: {error}".splitlines()[0][:200])


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would send the headers, with their key, to a server that the config does not name."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def _refusal(status: int, location: str) -> str:
    """Return the error for an HTTP status. It shows only the host of a redirect: the rest is often a secret."""
    if not 300 <= status < 400:
        return f"The receiver answered {status}."
    host = re.sub(r"[^\w.:-]", "", re.sub(r"\A\w+://|[/?#].*", "", location).rpartition("@")[2])[:100]
    where = f" to {host}" if host else ""
    return f"The receiver answered with a redirect ({status}){where}: set [alerts] webhook to the final URL."
