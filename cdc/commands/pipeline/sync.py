"""`tailrace sync`: apply the topics' events to stores until stopped."""

from __future__ import annotations

from pathlib import Path

import click

from cdc.commands.options import config_option
from cdc.config import load_config
from cdc.stop_signals import event_on


@click.command()
@click.argument("stores", nargs=-1, metavar="[STORE]...")
@config_option
@click.option(
    "--generation",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write to generation N, even if readers see another one.",
)
def sync(stores: tuple[str, ...], config_path: Path, generation: int | None) -> int:
    """Apply the topics' events to STOREs (default: all stores of the config) until stopped.

    Each store keeps its own position, inside the store. The sync of a store that is down or slow retries and does not
    delay other stores. Ctrl-C or SIGTERM stops the command. Exit code 3: the sync of a store refused to continue, and
    the log names the remedy; the other stores' syncs continued.
    """
    from spark_jobs.sync.sync import run_sync  # noqa: PLC0415 - see cdc.commands

    config = load_config(config_path)
    stop = event_on()
    return run_sync(config, stores, stop, generation=generation)
