"""`tailrace run`: supervise capture, due snapshots and all syncs, each in its own process. Wiring only."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from cdc.commands.options import config_option
from cdc.config import load_config
from cdc.stop_signals import STOP_SIGNALS, event_on
from cdc.supervisor.child_output import InFiles, OnStderr
from cdc.supervisor.terminal_view import view_for
from cdc.supervisor.wiring import Pipeline


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON every second.")
@click.option(
    "--logs",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the log files of the processes.  [default: .tailrace/logs next to the config on a terminal; else"
    " standard error]",
)
@click.pass_context
def run(context: click.Context, config_path: Path, as_json: bool, folder: Path | None) -> int:
    """Run the whole pipeline: capture, snapshots that are due, and the syncs of all stores.

    Each part runs in its own process. `tailrace run` restarts a part that dies, with increasing delays. A part that
    refuses to continue (exit code 3: the operator must decide) stays stopped, and its reason is shown; the other parts
    continue. SIGUSR1 restarts the parts that refused. The output shows the state of each part and the lag of each hop.

    Ctrl-C or SIGTERM stops everything, capture last. Exit code 3: every part has refused.
    """
    config = load_config(config_path)
    is_terminal = sys.stdout.isatty() and not as_json
    if folder is None and is_terminal:
        folder = config_path.absolute().parent / ".tailrace" / "logs"
    lines = OnStderr() if folder is None else InFiles(folder)
    pipeline = Pipeline(config, log_level=context.obj.log_level, lines=lines)
    stop = event_on({*STOP_SIGNALS, signal.SIGHUP})
    clear_refusal = event_on({signal.SIGUSR1})
    with view_for(as_json=as_json, is_terminal=is_terminal) as view:
        return pipeline.run(view, stop=stop, clear_refusal=clear_refusal)
