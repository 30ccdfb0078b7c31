"""A client of the dashboard without a browser: plain HTTP, in which every status is an answer."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Message
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Visitor:
    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._opener = urllib.request.build_opener(_NoRedirects)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers)

    def post(self, path: str, body: bytes = b"", **headers: str) -> Answer:
        return self.ask("POST", path, headers, body)

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> Answer:
        request = urllib.request.Request(  # noqa: S310 - a test's own server
            self.url + path, data=body, headers={**self._headers, **headers}, method=method
        )
        try:
            with self._opener.open(request, timeout=20) as response:
                return Answer(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator[Iterator[str]]:
        """An answer's lines as they come."""
        request = urllib.request.Request(self.url + path, headers={**self._headers, **headers})  # noqa: S310 - as above
        with self._opener.open(request, timeout=20) as response:
            yield (line.decode().rstrip() for line in response)

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/api/state").json["record"]
        return found
