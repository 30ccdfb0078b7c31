"""Options that several commands share, with the same name, help text and behaviour in each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])


def config_option(function: _Function) -> _Function:
    """Add `--config PATH`. The command receives `config_path: Path` and passes it to `load_config`."""
    return click.option(
        "--config",
        "config_path",
        type=click.Path(dir_okay=False, path_type=Path),
        default=Path("tailrace.toml"),
        show_default=True,
        envvar="TAILRACE_CONFIG",
        show_envvar=True,
        help="Config file.",
    )(function)


def json_option(function: _Function) -> _Function:
    """Add `--json`. The command receives `as_json: bool` and prints one JSON document to stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)
