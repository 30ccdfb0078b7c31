"""Spark's checkpoints are nobody's state: one that was left behind is taken away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from spark_jobs.sync.checkpoint_folders import fresh_checkpoint


def test_folders_of_processes_that_were_killed_are_taken_away(tmp_path: Path) -> None:
    """A process that lives keeps its own, and what is no checkpoint is not touched."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f"tailrace-checkpoint-{dead.pid}-x1y2"
    kept = [tmp_path / f"tailrace-checkpoint-{os.getppid()}-x1y2", tmp_path / f"other-{dead.pid}-x1y2"]
    for folder in (left, *kept):
        (folder / "offsets").mkdir(parents=True)
    fresh = fresh_checkpoint(tmp_path)
    assert fresh.name.startswith(f"tailrace-checkpoint-{os.getpid()}-")
    assert set(tmp_path.iterdir()) == {fresh, *kept}
