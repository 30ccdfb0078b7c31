"""Publishes the changes that a slot still holds, with a capture that stops after a given LSN."""

from __future__ import annotations

import threading

import psycopg

from cdc.capture.loop import run_capture
from cdc.config import Config
from cdc.errors import TailraceError
from cdc.lsn import LSN
from cdc.names import Control, control_topic
from cdc.positions.progress import read_progress
from cdc.setup.source_state import end_of_open_transactions

_POLL_SECONDS = 0.3


def catch_up(config: Config, connection: psycopg.Connection) -> LSN:
    """Publish all changes of the transactions that are open now or have ended; return the LSN that capture reached."""
    until = end_of_open_transactions(connection)
    enough = threading.Event()
    watcher = threading.Thread(target=_watch, args=(config, until, enough), name="tailrace-catch-up", daemon=True)
    watcher.start()
    try:
        run_capture(config, enough)
    finally:
        enough.set()
        watcher.join()
    return until


def _watch(config: Config, until: LSN, enough: threading.Event) -> None:
    topic = control_topic(config.kafka.prefix, Control.PROGRESS)
    while not enough.wait(_POLL_SECONDS):
        try:
            progress = read_progress(config.kafka.client_options(), topic)
        except TailraceError:
            continue  # capture gets the same error and reports it
        if progress is not None and progress.confirmable >= until:
            enough.set()
