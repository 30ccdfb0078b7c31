"""`tailrace capture`: the reader of the write-ahead log, until it is told to stop."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType

import click

from cdc.capture import run_capture
from cdc.commands.options import config_option
from cdc.config import load_config


@click.command()
@config_option
def capture(config_path: Path) -> None:
    """Read the write-ahead log and publish every change to the compacted topics, exactly once.

    Makes the publication, the slot and the topics on its first start. A second one on the same slot waits as the
    standby and takes over when the first is gone. Ctrl-C or SIGTERM stops it; what is not published yet stays in the
    slot. Exit code 3: going on could lose changes, and the message says what to do.
    """
    config = load_config(config_path)
    stop = threading.Event()

    def ask_to_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)
    run_capture(config, stop)
