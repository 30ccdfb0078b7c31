"""Prints docs/reference/commands.md, made from the commands' own help.

click keeps the first help option that a command was asked for, so the page is right only in a separate process:

`python -m tests.harness.docs.command_page > docs/reference/commands.md`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from cdc.cli import COMMANDS, tailrace

PAGE: Final = Path(__file__).parents[3] / "docs" / "reference" / "commands.md"
_WIDTH: Final = 100
_GUIDES: Final = {
    "init": "guides/source-setup.md",
    "check": "reference/check.md",
    "capture": "guides/running.md",
    "snapshot": "guides/snapshots.md",
    "sync": "guides/sync.md",
    "bootstrap": "guides/bootstrap.md",
    "query": "guides/warehouse.md",
    "maintain": "guides/warehouse.md#upkeep",
    "wait": "guides/sync.md#reading-your-own-writes",
    "run": "guides/running.md",
    "lag": "guides/dashboard.md#on-a-terminal",
    "dashboard": "guides/dashboard.md",
    "pause": "guides/sync.md#pausing",
    "resume": "guides/sync.md#pausing",
    "audit": "guides/audit.md",
    "parked": "guides/sync.md#parked-rows",
    "recover": "guides/operations.md#capture-has-refused-tailrace-recover",
    "remove": "guides/removing.md",
    "config": "reference/config.md",
    "stack": "guides/stack.md",
}
_INTRODUCTION: Final = """\
# Commands

Every command of `tailrace` with its options. This page is made from the commands' own `--help` texts by
`python -m tests.harness.docs.command_page`; a test compares the two.

| exit code | meaning |
|---|---|
| 0 | done, or the answer is yes |
| 1 | the answer is no, or an error that another attempt may solve |
| 2 | wrong use or config |
| 3 | refused: to continue could lose or duplicate changes, so a person must decide. Do not restart automatically |
| 130 | interrupted by Ctrl-C |

"""


def page() -> str:
    return _INTRODUCTION + "\n".join([*_overview(), "", *_sections()])


def _overview() -> Iterator[str]:
    yield "| command | what it does | more |"
    yield "|---|---|---|"
    for name, command in COMMANDS.items():
        path = _GUIDES.get(name, "")
        link = path.removeprefix("reference/") if path.startswith("reference/") else f"../{path}"
        more = f"[{Path(path.partition('#')[0]).name}]({link})" if path else ""
        yield f"| [`tailrace {name}`](#tailrace-{name}) | {command.help} | {more} |"


def _sections() -> Iterator[str]:
    yield from _section(tailrace, click.Context(tailrace, info_name="tailrace", **tailrace.context_settings), "##")


def _section(command: click.Command, context: click.Context, rank: str) -> Iterator[str]:
    context.terminal_width = _WIDTH
    yield f"{rank} `{context.command_path}`\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                deeper = rank if command is tailrace else f"{rank}#"
                yield from _section(inner, click.Context(inner, info_name=name, parent=context), deeper)


if __name__ == "__main__":
    sys.stdout.write(page())
