"""`tailrace pause` and `tailrace resume`: pause and resume the sync of stores."""

from __future__ import annotations

from pathlib import Path

import click

from cdc.commands.options import config_option
from cdc.config import load_config
from cdc.errors import UsageError
from cdc.positions.store_notes import set_paused


@click.command()
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@config_option
def pause(stores: tuple[str, ...], config_path: Path) -> None:
    """Pause the sync of STOREs after the current batch, on whichever host it runs, until `tailrace resume`.

    Other stores and capture are not affected. The pause survives restarts. A store that is paused for longer than
    [kafka] delete_retention_hours needs a bootstrap afterwards.
    """
    _set(stores, config_path, paused=True)


@click.command()
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@config_option
def resume(stores: tuple[str, ...], config_path: Path) -> None:
    """Resume the sync of paused STOREs from their present positions."""
    _set(stores, config_path, paused=False)


def _set(stores: tuple[str, ...], config_path: Path, *, paused: bool) -> None:
    config = load_config(config_path)
    for name in stores:
        if name not in config.stores:
            raise UsageError(f"There is no [stores.{name}] in the config.")
    for name in stores:
        set_paused(config, name, paused)
        click.echo(f"{name}: {'paused' if paused else 'resumed'}")
