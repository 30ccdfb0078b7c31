"""Builds the example of docs/guides/writing-a-sink.md as a wheel, and installs it into a folder of its own.

A process that has the folder on its PYTHONPATH finds the sink through its entry points, as after `pip install`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "sqlite_sink"
MODULE: Final = "tailrace_sqlite"


def install_example(folder: Path) -> Path:
    """Return the folder that holds the installed distribution, below `folder`."""
    source, wheels, target = folder / "source", folder / "wheels", folder / "installed"
    shutil.copytree(EXAMPLE, source)  # the build writes beside the source
    _pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(wheels), str(source))
    (wheel,) = wheels.glob("*.whl")
    _pip("install", "--no-deps", "--no-compile", "--target", str(target), str(wheel))
    return target


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
