"""The main module of a child process: it runs a `tailrace` command that stops when the supervisor ends.

The supervisor starts it as `python -m cdc.supervisor.child_main COMMAND…`, which runs `tailrace COMMAND…`.
Standard input is a pipe from the supervisor. When the supervisor ends, for whatever reason, the pipe closes. The child
then sends itself SIGTERM. If it still runs after the grace period, it kills its process group with SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from cdc import cli
from cdc.capture import allocator

GRACE_SECONDS = 20.0


def main() -> None:
    """Start the thread that watches the pipe, and run the command."""
    # Before the thread below gets its own malloc arena: capture is faster with a single arena.
    allocator.share_memory()
    supervisor_pipe = os.dup(0)  # a new descriptor, which the command's own children do not inherit
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    threading.Thread(target=_watch, args=(supervisor_pipe, nothing), name="parent watch", daemon=True).start()
    sys.exit(cli.main(sys.argv[1:]))


def _watch(supervisor_pipe: int, nothing: int) -> None:
    while os.read(supervisor_pipe, 1):
        pass
    # No process reads the output any more. A broken pipe must not interrupt the clean shutdown.
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
