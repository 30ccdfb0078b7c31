"""The folder in which the processes of a pipeline keep small local files."""

from __future__ import annotations

from pathlib import Path

from cdc.config import Config


def state_folder(config: Config) -> Path:
    """Return `.tailrace` beside the config file. It holds only files that may be lost."""
    base = config.file.parent if config.file is not None else Path.cwd()
    return base / ".tailrace"
