"""What a reader costs: CPU seconds and the peak of its resident memory. Reads /proc where there is one."""

from __future__ import annotations

import re
from pathlib import Path

import psutil


class Meter:
    """Over a process and its children. Ask while it lives."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    def cpu_seconds(self) -> float:
        return sum(times.user + times.system for times in (each.cpu_times() for each in self._tree()))

    def peak_memory_mb(self) -> float:
        return sum(_peak_bytes(each) for each in self._tree()) / 1_000_000

    def _tree(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]


def _peak_bytes(process: psutil.Process) -> int:
    """The kernel's own high-water mark; where it keeps none, what is resident now."""
    status = Path(f"/proc/{process.pid}/status")
    found = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE) if status.exists() else None
    return int(found.group(1)) * 1024 if found else int(process.memory_info().rss)
