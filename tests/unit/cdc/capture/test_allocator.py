"""Capture keeps the memory that it allocated, so that a transaction's size does not show in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.harness.processes.process import ROOT

_CODE = """
import re
from pathlib import Path
from cdc.capture.allocator import keep_memory

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

before = resident()
keep_memory(20 << 20)
print(resident() - before)
blocks = [bytes(2000) for _ in range(5000)]
del blocks
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts with /proc")
def test_what_is_reserved_is_there_and_is_used_again() -> None:
    """10 MB of records use the 20 MB reserved at the start, and nothing is returned to the system."""
    run = subprocess.run([sys.executable, "-c", _CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    reserved, after_use = (int(line) for line in run.stdout.split())
    assert reserved > 18 << 20
    assert abs(after_use - reserved) < 3 << 20
