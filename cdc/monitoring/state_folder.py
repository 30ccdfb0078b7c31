"""The folder beside the config where processes of one pipeline keep small files."""

from __future__ import annotations

from pathlib import Path

from cdc.config import Config


def state_folder(config: Config) -> Path:
    """Where this machine keeps what may be lost: `.tailrace` beside the config file."""
    base = config.file.parent if config.file is not None else Path.cwd()
    return base / ".tailrace"
