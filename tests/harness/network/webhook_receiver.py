"""A real HTTP receiver of webhooks, which can also refuse and redirect."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """`messages`: what was taken, in order. `refuse_next`: so many are answered with 503 first.

    While `redirect` holds a status and a URL, every request is answered with them. `asked` has a line for each request.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.asked: list[str] = []
        self.redirect: tuple[int, str] | None = None
        self.refused = 0
        self.refuse_next = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.asked.append(self.requestline)
                if receiver.redirect is not None:
                    self._send_elsewhere(*receiver.redirect)
                    return
                if receiver.refuse_next > 0:
                    receiver.refuse_next -= 1
                    receiver.refused += 1
                    self.send_response(503)
                else:
                    receiver.messages.append(json.loads(body))
                    receiver.headers.append(dict(self.headers))
                    self.send_response(204)
                self.end_headers()

            def do_GET(self) -> None:
                """The request that a client makes of its POST when it follows a redirect."""
                receiver.asked.append(self.requestline)
                if receiver.redirect is not None:
                    self._send_elsewhere(*receiver.redirect)
                    return
                self.send_response(200)
                self.end_headers()

            do_HEAD = do_PUT = do_GET  # noqa: N815 - the names that the library looks up

            def _send_elsewhere(self, status: int, url: str) -> None:
                self.send_response(status)
                self.send_header("Location", url)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its own name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
