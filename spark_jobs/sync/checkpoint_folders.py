"""Temporary folders for Spark's checkpoints, which no process reads again.

Folders that a killed process has left behind are removed.
"""

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
    """Create a folder whose name has this process's id. Removes the folders of dead processes."""
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
    except (PermissionError, OverflowError):  # another user's process, or a number that is no pid
        return True
    return True
