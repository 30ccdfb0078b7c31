"""`tailrace demo`: the local servers and a shop that is written to all the time. Wiring only; see `cdc.demo`."""

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
from cdc.demo.past import ask_for, remember
from cdc.demo.pipeline_part import STORES, PipelinePart, write_config
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
    "--for", "seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="End by itself after this time."
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=_FOLDER,
    show_default=True,
    help="Where the servers keep data, logs and state; the same as for `tailrace stack`.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=20.0,
    show_default=True,
    help="Transactions a second; 0 is as fast as it goes.",
)
@click.option("--seed", type=int, help="Write the same again on a fresh folder.  [default: another one every time]")
@click.option("--keep", is_flag=True, help="Leave the servers running at the end.")
@click.option("--without-stores", is_flag=True, help="Only capture: the changes go to Kafka and no further.")
def demo(seconds: float | None, folder: Path, rate: float, seed: int | None, keep: bool, without_stores: bool) -> int:
    """Run a small shop on the local servers.

    Starts Postgres, Kafka, Elasticsearch and Redis, creates the database `shop` (customers, products, orders,
    order_items) with some rows in it, and runs the whole pipeline: the first copy, capture, and the syncs of a search
    index, a cache and a warehouse. Meanwhile it inserts, updates and deletes in the shop all the time. At the end it
    stops writing, waits until all stores have everything, compares them with the source, row by row, and asks the
    warehouse for a state that has passed.

    Ctrl-C ends it (a second one skips the comparison); servers that ran before are left alone, and the data stays in
    the folder. Exit code 1: a store differs from the source.
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
    """The parts of this demo, and what is said of them at the end."""

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
        _say(f"The page, once the pipeline runs: {self.page}")
        self.writer = ShopWriter(dsn, seed=self._seed, rate=self._rate)
        if self._stores:
            self.writer.write(_FIRST_TRANSACTIONS)  # something for the first copy
        pipeline = PipelinePart(self._config_file, self._stack.folder / "logs", stores=self._stores, say=_say)
        return [pipeline, WriterPart(self.writer)]

    def conclude(self) -> bool:
        if self.writer is None or not self._stores:
            return True
        self.writer.stop()
        config = load_config(self._config_file)
        past = remember(config)
        ShopWriter(config.source.dsn.reveal(), seed=self._seed + 1, rate=0).write(_LAST_TRANSACTIONS)
        _say("Stopped writing; comparing the stores with the source, row by row (Ctrl-C skips it).")
        well = True
        for comparison in compare_all(config, _ARRIVAL_SECONDS):
            click.echo(str(comparison))
            well = well and bool(comparison)
        return ask_for(past, self._config_file, click.echo) and well


def _say(line: str) -> None:
    click.echo(line, err=True)


def _hint(folder: Path, page: str) -> str:
    program = _program()
    inside = f"{program} stack sql --database {DATABASE}" + ("" if folder == _FOLDER else f" --folder {folder}")
    changes = f"{program} tail public.orders --config {folder / 'tailrace.toml'}"
    return f"Open {page}, look inside with `{inside}`, watch changes with `{changes}`; Ctrl-C stops the demo."


def _program() -> str:
    """How the reader calls us: in a fresh clone `tailrace` is in .venv/bin, and that is not on the PATH."""
    beside = Path(sys.executable).with_name("tailrace")
    return os.path.relpath(beside) if shutil.which("tailrace") is None and beside.exists() else "tailrace"


class _Lines(ProgressLines, AbstractContextManager["_Lines"]):
    """Where there is no terminal, nothing has to be drawn or taken away."""

    def __exit__(self, *_: object) -> None:
        return None


def _progress() -> Terminal | _Lines:
    """On stderr, so that what the demo itself shows can be kept apart."""
    console = Console(stderr=True)
    return Terminal(console) if console.is_terminal else _Lines(sys.stderr)
