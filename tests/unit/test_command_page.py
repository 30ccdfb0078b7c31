"""docs/reference/commands.md says what the commands' own help says."""

from __future__ import annotations

from tests.harness.command_page import PAGE, page


def test_the_reference_of_commands_is_the_commands_own_help() -> None:
    """Every command, subcommand and option; `python -m tests.harness.command_page` writes the page again."""
    assert PAGE.read_text(encoding="utf-8") == page()
