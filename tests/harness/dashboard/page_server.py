"""The real web server on a free port, in a thread, with a status that the test sets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import uvicorn

from cdc.config import Config
from cdc.monitoring.status_record import PipelineStatus
from cdc.monitoring.web.actions import Actions
from cdc.monitoring.web.dashboard import make_watch
from cdc.monitoring.web.server import DashboardServer
from cdc.monitoring.web.status_poller import StatusPoller


class Shown:
    """An observer that returns the status that the test sets, as if it had just been read."""

    def __init__(self, record: PipelineStatus) -> None:
        self.record = record

    def poll(self, deadline_seconds: float) -> PipelineStatus:  # noqa: ARG002 - an observer's signature
        return replace(self.record, read_at=time.time())

    def close(self) -> None:
        pass


class PageServer:
    def __init__(self, config: Config, record: PipelineStatus, actions: Actions | None = None) -> None:
        self.shown = Shown(record)
        self.watch: StatusPoller = make_watch(config, self.shown)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._served = DashboardServer(config, self.watch, actions or Actions(config))
        settings = uvicorn.Config(self._served.app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True)

    def start(self) -> None:
        self.watch.poll_once()
        self.watch.start()
        self._thread.start()

    def stop(self) -> None:
        self._served.closing = True
        self._server.should_exit = True
        self._thread.join(10)
        self.watch.stop()
        self._listener.close()


@contextmanager
def serving(config: Config, record: PipelineStatus, actions: Actions | None = None) -> Iterator[PageServer]:
    server = PageServer(config, record, actions)
    server.start()
    try:
        yield server
    finally:
        server.stop()
