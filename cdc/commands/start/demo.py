"""`tailrace demo`: run the local servers, an example shop with constant writes, and a pipeline.

Wiring only; the work is in `cdc.demo`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import click
from rich.console import Console

from cdc.config import load_config
from cdc.demo.comparison import compare_all
from cdc.demo.parts import DemoPart, WriterPart
from cdc.demo.past_totals import query_as_of, remember
from cdc.demo.pipeline_process import STORES, PipelineProcess, write_config
from cdc.demo.run import Demo
from cdc.demo.shop import DATABASE, create_database
from cdc.demo.view import view_on
from cdc.demo.writer import ShopWriter
from deploy.progress import ProgressLines, Terminal
from deploy.stack import NAMES, Stack, open_stack
from deploy.stack.ports import choose_port, is_free

_FOLDER = Path(".tailrace/stack")
_FIRST_TRANSACTIONS = 150
_LAST_TRANSACTIONS = 20
_ARRIVAL_SECONDS = 120.0
_PAGE_PORT = 8787


@click.command()
@click.option(
    "--for", "seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop the demo after this time."
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=_FOLDER,
    show_default=True,
    help="Folder for the servers' data, logs and state; the same as for `tailrace stack`.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=20.0,
    show_default=True,
    help="Transactions per second; 0 means no limit.",
)
@click.option("--seed", type=int, help="Random seed; repeats the same writes on a new folder.  [default: random]")
@click.option("--keep", is_flag=True, help="Keep the servers running after the demo.")
@click.option("--without-stores", is_flag=True, help="Run capture only; changes go to Kafka but to no store.")
def demo(seconds: float | None, folder: Path, rate: float, seed: int | None, keep: bool, without_stores: bool) -> int:
    """Run an example shop and a whole pipeline on the local servers.

    The demo starts Postgres, Kafka, Elasticsearch and Redis, creates the database `shop` (customers, products, orders,
    order_items) with some rows, and runs the whole pipeline: the initial snapshot, capture, and the syncs of a search
    index, a cache and a warehouse. Meanwhile it constantly inserts, updates and deletes rows in the shop. At the end it
    stops writing, waits until all stores have every change, compares them with the source row by row, and queries a
    past state from the warehouse.

    Ctrl-C stops the demo; a second Ctrl-C skips the comparison. The demo does not stop servers that were running
    before it, and the data stays in the folder. Exit code 1: a store differs from the source.
    """
    seed = secrets.randbelow(2**31) if seed is None else seed
    shown = _progress()
    stack = open_stack(folder, progress=shown)
    stage = _Stage(stack, stores=() if without_stores else STORES, seed=seed, rate=rate)

    def bring_up() -> None:
        with shown:
            stack.up()

    console = Console()
    well = Demo(
        stack=stack,
        bring_up=bring_up,
        parts=lambda _: stage.parts(),
        view=lambda: view_on(console, _hint(folder, stage.page)),
        conclude=stage.conclude,
        say=_say,
        seconds=seconds,
        keep=keep,
    ).run()
    if stage.writer is not None:
        counts = stage.writer.counts
        click.echo(
            f"Wrote {counts.transactions:,} transactions with seed {seed}: {counts.inserted:,} rows inserted,"
            f" {counts.updated:,} updated, {counts.deleted:,} deleted."
        )
    return 0 if well else 1


class _Stage:
    """Creates the demo's parts (pipeline and writer), and compares the stores with the source at the end."""

    def __init__(self, stack: Stack, *, stores: Sequence[str], seed: int, rate: float) -> None:
        self.writer: ShopWriter | None = None
        self.page = ""
        self._stack = stack
        self._config_file = stack.folder / "tailrace.toml"
        self._stores = stores
        self._seed = seed
        self._rate = rate

    def parts(self) -> Sequence[DemoPart]:
        addresses = {name: self._stack.server(name).address for name in NAMES}
        dsn = create_database(addresses["postgres"])
        port = _PAGE_PORT if is_free(_PAGE_PORT) else choose_port(set())
        self.page = f"http://127.0.0.1:{port}/"
        write_config(self._config_file, addresses, dsn=dsn, page_port=port, with_stores=bool(self._stores))
        _say(f"Dashboard, once the pipeline runs: {self.page}")
        self.writer = ShopWriter(dsn, seed=self._seed, rate=self._rate)
        if self._stores:
            self.writer.write(_FIRST_TRANSACTIONS)  # rows for the initial snapshot
        pipeline = PipelineProcess(self._config_file, self._stack.folder / "logs", stores=self._stores, say=_say)
        return [pipeline, WriterPart(self.writer)]

    def conclude(self) -> bool:
        if self.writer is None or not self._stores:
            return True
        self.writer.stop()
        config = load_config(self._config_file)
        past = remember(config)
        ShopWriter(config.source.dsn.reveal(), seed=self._seed + 1, rate=0).write(_LAST_TRANSACTIONS)
        _say("Stopped writing. Comparing the stores with the source, row by row (Ctrl-C skips this).")
        well = True
        for comparison in compare_all(config, _ARRIVAL_SECONDS):
            click.echo(str(comparison))
            well = well and bool(comparison)
        return query_as_of(past, self._config_file, click.echo) and well


def _say(line: str) -> None:
    click.echo(line, err=True)


def _hint(folder: Path, page: str) -> str:
    program = _program()
    inside = f"{program} stack sql --database {DATABASE}" + ("" if folder == _FOLDER else f" --folder {folder}")
    changes = f"{program} tail public.orders --config {folder / 'tailrace.toml'}"
    return f"Dashboard: {page}. Query the database: `{inside}`. Watch changes: `{changes}`. Ctrl-C stops the demo."


def _program() -> str:
    """Return the command that starts `tailrace`: in a fresh clone it is in .venv/bin, which is not on the PATH."""
    beside = Path(sys.executable).with_name("tailrace")
    return os.path.relpath(beside) if shutil.which("tailrace") is None and beside.exists() else "tailrace"


class _Lines(ProgressLines, AbstractContextManager["_Lines"]):
    """Progress lines as a context manager, for output that is no terminal; there is nothing to clear at the end."""

    def __exit__(self, *_: object) -> None:
        return None


def _progress() -> Terminal | _Lines:
    """Return a progress display on stderr, so that stdout holds only the demo's own output."""
    console = Console(stderr=True)
    return Terminal(console) if console.is_terminal else _Lines(sys.stderr)
