"""Wires the dashboard and runs it until a signal stops it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from cdc.config import Config
from cdc.monitoring.alerts.delivery import Delivery
from cdc.monitoring.alerts.journal import Journal
from cdc.monitoring.observer import Observer
from cdc.monitoring.process_file import parts_path, read_process_errors
from cdc.monitoring.state_folder import state_folder
from cdc.monitoring.web.actions import Actions
from cdc.monitoring.web.consumer_groups import GroupMirror
from cdc.monitoring.web.history import open_history
from cdc.monitoring.web.server import DashboardServer
from cdc.monitoring.web.status_poller import StatusPoller, StatusSource
from cdc.stop_signals import handled_by

# The time that open requests get at shutdown. Event streams never end by themselves.
_GRACE_SECONDS = 2


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that ends the event streams before it waits for open requests."""

    def __init__(self, config: uvicorn.Config, server: DashboardServer) -> None:
        super().__init__(config)
        self._served = server

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM as uvicorn does, but do not raise the signal again afterwards.

        So the exit code after a clean shutdown is 0.
        """
        with handled_by(self.handle_exit):
            yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._served.closing = True
        await super().shutdown(sockets)


def serve(config: Config, listener: socket.socket, observer: StatusSource | None = None) -> None:
    """Run the dashboard on this socket. `observer`: a substitute for tests of the page."""
    actions = Actions(config)
    watch = make_watch(config, observer)
    server = DashboardServer(config, watch, actions)
    settings = uvicorn.Config(
        server.app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    watch.start()
    try:
        _Uvicorn(settings, server).run(sockets=[listener])
    finally:
        watch.stop()
        actions.stop()


def make_watch(config: Config, observer: StatusSource | None = None) -> StatusPoller:
    """Create the polling thread and its consumers. It is not started yet."""
    parts = parts_path(config)
    return StatusPoller(
        config,
        observer or Observer(config, process_errors=lambda: read_process_errors(parts)),
        history=open_history(config),
        journal=Journal(state_folder(config) / f"journal-{config.kafka.prefix}.json"),
        delivery=Delivery(config.alerts),
        mirror=GroupMirror(config) if config.lag.consumer_groups and observer is None else None,
    )
