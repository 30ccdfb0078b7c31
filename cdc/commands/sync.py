"""`tailrace sync`: keep stores in step with the topics, until it is told to stop."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType

import click

from cdc.commands.options import config_option
from cdc.config import load_config


@click.command()
@click.argument("stores", nargs=-1, metavar="[STORE]...")
@config_option
@click.option("--generation", type=click.IntRange(min=1), metavar="N", help="Feed this generation, whichever serves.")
def sync(stores: tuple[str, ...], config_path: Path, generation: int | None) -> int:
    """Keep STOREs (all of the config, unless named) in step with the topics.

    Each store has its own position, inside itself, and its own trouble: one that is down or slow is tried again and
    holds up no other. Ctrl-C or SIGTERM stops it. Exit code 3: a store refused, and the log says what to do; the others
    went on.
    """
    from spark_jobs.sync.sync import run_sync  # noqa: PLC0415 - Spark takes its time

    config = load_config(config_path)
    stop = threading.Event()

    def ask_to_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)
    return run_sync(config, stores, stop, generation=generation)
