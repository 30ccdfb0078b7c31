"""Leftover Spark checkpoints are removed, since no state depends on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from spark_jobs.sync.checkpoint_folders import fresh_checkpoint


def test_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """The folder of a live process and other folders are kept."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f"tailrace-checkpoint-{dead.pid}-x1y2"
    kept = [tmp_path / f"tailrace-checkpoint-{os.getppid()}-x1y2", tmp_path / f"other-{dead.pid}-x1y2"]
    for folder in (left, *kept):
        (folder / "offsets").mkdir(parents=True)
    fresh = fresh_checkpoint(tmp_path)
    assert fresh.name.startswith(f"tailrace-checkpoint-{os.getpid()}-")
    assert set(tmp_path.iterdir()) == {fresh, *kept}
