"""The retry loop around capture sessions.

Exactly-once delivery depends on the order of a session's steps (docs/design/exactly-once.md): acquire the slot, fence,
read progress, check, skip published changes, then publish batch after batch (`batches`).
"""

from __future__ import annotations

import gc
import threading
import time

import psycopg

from cdc.backoff import Backoff
from cdc.capture.wiring import open_session
from cdc.config import Config
from cdc.errors import RefusedError, TransientError
from cdc.logs import get_logger
from cdc.postgres.connection import explain

log = get_logger("capture")

# The pauses between two sessions. A session longer than the last value resets the pause.
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS, _LONG_SESSION_SECONDS = 0.25, 5.0, 30.0


def is_transient(error: psycopg.Error) -> bool:
    """Whether a retry can succeed: connections, deadlocks, locks, limits, a server that shuts down, a race."""
    # psycopg derives OperationalError from the SQLSTATE (40, 53, 55, 57, 58, …). DDL concurrent with a catalog query
    # causes XX000: "tuple concurrently updated", "cache lookup failed". (XX001 and XX002 mean damaged data.)
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) or error.sqlstate == "XX000"


def run_capture(config: Config, stop: threading.Event) -> None:
    """Run capture sessions until `stop` is set, and retry after transient errors. Refusals go to the caller."""
    backoff = Backoff(_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS, _LONG_SESSION_SECONDS)
    while not stop.is_set():
        born = time.monotonic()
        try:
            _run_session(config, stop)
            continue
        except psycopg.Error as error:
            if not is_transient(error):
                raise RefusedError(
                    f"Postgres refused: {explain(error)}", remedy="Repair this at the source, then start capture again."
                ) from error
            reason = explain(error)
        except TransientError as error:
            reason = str(error)
        pause_seconds = backoff.after(time.monotonic() - born)
        log.warning("retrying", reason=reason, in_seconds=pause_seconds)
        gc.collect()  # frees the ended session's producer, whose threads and sockets are in a reference cycle
        stop.wait(pause_seconds)


def _run_session(config: Config, stop: threading.Event) -> None:
    with open_session(config, stop) as session:
        if session is not None:
            session.run()
