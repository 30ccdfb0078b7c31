"""docs/guides/writing-a-sink.md shows the example that the tests build and run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.stores.example_sink import EXAMPLE

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "writing-a-sink.md"


@pytest.mark.parametrize(("name", "language"), [("tailrace_sqlite.py", "python"), ("pyproject.toml", "toml")])
def test_the_guide_shows_the_example_whole(name: str, language: str) -> None:
    """Each file of the example stands in the guide, byte for byte."""
    assert f"```{language}\n{(EXAMPLE / name).read_text()}```\n" in PAGE.read_text()
