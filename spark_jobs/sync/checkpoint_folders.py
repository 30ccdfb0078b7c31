"""Folders for Spark's checkpoints, which nobody reads again: those of a process that was killed are taken away."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

_PREFIX: Final = "tailrace-checkpoint-"
_NAME: Final = re.compile(rf"{_PREFIX}(\d+)-\w+")


def fresh_checkpoint(parent: Path) -> Path:
    """A new folder that names this process. What dead ones have left there goes."""
    for folder in parent.glob(f"{_PREFIX}*"):
        owner = _NAME.fullmatch(folder.name)
        if owner is not None and not _is_alive(int(owner[1])):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # somebody else's
        return True
    return True
