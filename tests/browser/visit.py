"""One visit of the page, and everything that went wrong in it: console lines, errors, requests to anybody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page

DESK = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


class Visit:
    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("console", lambda message: self.errors.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        page.on("requestfailed", lambda request: self._failed(request.url, request.failure or ""))
        page.on("request", lambda request: self._judge(request.url, url))

    def _failed(self, asked: str, why: str) -> None:
        if why != "net::ERR_ABORTED":  # the stream of events ends with the page that listened to it
            self.errors.append(f"failed: {asked}: {why}")

    def _judge(self, asked: str, own: str) -> None:
        if not asked.startswith(own):
            self.errors.append(f"asked somebody else: {asked}")

    def open(self, url: str) -> Page:
        self.page.goto(url)
        self.page.wait_for_selector("#stores article")
        self.page.wait_for_selector("#chart-lag path.line", state="attached")  # a flat line has no height
        return self.page


@contextmanager
def visiting(
    chromium: Browser, url: str, *, dark: bool = False, size: dict[str, int] | None = None, token: str | None = None
) -> Iterator[Visit]:
    settings: dict[str, Any] = {"color_scheme": "dark" if dark else "light", "viewport": size or DESK}
    if token is not None:
        settings["extra_http_headers"] = {"Authorization": f"Bearer {token}"}
    context = chromium.new_context(**settings)
    try:
        yield Visit(context.new_page(), url)
    finally:
        context.close()
