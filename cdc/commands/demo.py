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

from cdc.demo.capture_part import CapturePart
from cdc.demo.parts import Part, WriterPart
from cdc.demo.run import Demo
from cdc.demo.shop import DATABASE, create_database
from cdc.demo.view import view_on
from cdc.demo.writer import Writer
from deploy.progress import Lines, Terminal
from deploy.stack import Stack, open_stack

_FOLDER = Path(".tailrace/stack")


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
def demo(seconds: float | None, folder: Path, rate: float, seed: int | None, keep: bool) -> None:
    """Run a small shop on the local servers.

    Starts Postgres, Kafka, Elasticsearch and Redis, creates the database `shop` (customers, products, orders,
    order_items), inserts, updates and deletes in it all the time, in transactions of many rows, and captures every
    change to Kafka. Ctrl-C stops everything; servers that ran before are left alone, and the data stays in the folder.
    """
    console = Console()
    seed = secrets.randbelow(2**31) if seed is None else seed
    writers: list[Writer] = []

    def parts(stack: Stack) -> Sequence[Part]:
        dsn = create_database(stack.server("postgres").address)
        writers.append(Writer(dsn, seed=seed, rate=rate))
        capture = CapturePart(stack.folder, dsn=dsn, bootstrap=stack.server("kafka").address)
        return [capture, WriterPart(writers[0])]

    shown = _progress()
    stack = open_stack(folder, progress=shown)

    program = _program()
    inside = f"{program} stack sql --database {DATABASE}" + ("" if folder == _FOLDER else f" --folder {folder}")
    changes = f"{program} tail public.orders --config {folder / 'tailrace.toml'}"
    hint = f"Look inside with `{inside}`, watch changes with `{changes}`; Ctrl-C stops the demo."

    def bring_up() -> None:
        with shown:
            stack.up()

    Demo(
        stack=stack,
        bring_up=bring_up,
        parts=parts,
        view=lambda: view_on(console, hint),
        say=lambda line: click.echo(line, err=True),
        seconds=seconds,
        keep=keep,
    ).run()
    for writer in writers:
        counts = writer.counts
        click.echo(
            f"Wrote {counts.transactions:,} transactions with seed {seed}: {counts.inserted:,} rows inserted,"
            f" {counts.updated:,} updated, {counts.deleted:,} deleted."
        )


def _program() -> str:
    """How the reader calls us: in a fresh clone `tailrace` is in .venv/bin, and that is not on the PATH."""
    beside = Path(sys.executable).with_name("tailrace")
    return os.path.relpath(beside) if shutil.which("tailrace") is None and beside.exists() else "tailrace"


class _Lines(Lines, AbstractContextManager["_Lines"]):
    """Where there is no terminal, nothing has to be drawn or taken away."""

    def __exit__(self, *_: object) -> None:
        return None


def _progress() -> Terminal | _Lines:
    """On stderr, so that what the demo itself shows can be kept apart."""
    console = Console(stderr=True)
    return Terminal(console) if console.is_terminal else _Lines(sys.stderr)
