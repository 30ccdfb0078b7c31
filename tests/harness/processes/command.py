"""Runs `tailrace` inside the test's own process, which is faster; a command that is interrupted needs a process."""

from __future__ import annotations

import io
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from cdc import cli


@dataclass(frozen=True)
class Said:
    stdout: str
    stderr: str


def run_command(command: str, config: Path, *arguments: str, code: int = 0, answer: str = "") -> Said:
    """`answer`: the text typed at the prompt. The exit code must be `code`."""
    out, err = io.StringIO(), io.StringIO()
    root = logging.getLogger()
    before = root.handlers, root.level
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, stream in (("stdout", out), ("stderr", err), ("stdin", io.StringIO(answer))):
                patch.setattr(sys, name, stream)
            found = cli.main([command, "--config", str(config), *arguments])
    finally:
        root.handlers, root.level = before
        structlog.reset_defaults()
    assert found == code, f"exit code {found}\n{out.getvalue()}\n{err.getvalue()}"
    return Said(out.getvalue(), err.getvalue())
