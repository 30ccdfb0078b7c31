"""docs/reference/commands.md says what the commands' own help says."""

from __future__ import annotations

import subprocess
import sys

from tests.harness.docs.command_page import PAGE


def test_the_reference_of_commands_is_the_commands_own_help() -> None:
    """Every command, subcommand and option; `python -m tests.harness.docs.command_page` prints the page."""
    printed = subprocess.run(
        [sys.executable, "-m", "tests.harness.docs.command_page"], capture_output=True, text=True, check=True
    ).stdout
    assert PAGE.read_text(encoding="utf-8") == printed
