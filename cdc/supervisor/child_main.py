"""The child process: `python -m cdc.supervisor.child_main COMMAND…` is `tailrace COMMAND…`, ended with its supervisor.

Standard input is a pipe from the supervisor. When that process ends, however it ends, the pipe closes: the command is
asked to stop as if by SIGTERM, and killed with its children if it does not.
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
    allocator.share_memory()  # before the thread below has an arena of its own: capture is faster without
    leash = os.dup(0)  # a number that nobody else uses; the command's children do not inherit it
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    threading.Thread(target=_watch, args=(leash, nothing), name="leash", daemon=True).start()
    sys.exit(cli.main(sys.argv[1:]))


def _watch(leash: int, nothing: int) -> None:
    while os.read(leash, 1):
        pass
    # Nobody reads the log any more; a broken pipe must not cut the clean end short.
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
