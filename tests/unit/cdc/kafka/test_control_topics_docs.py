"""Every control topic is in the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.names import Control

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"


@pytest.mark.parametrize("page", ["events.md", "glossary.md"])
def test_every_control_topic_is_listed(page: str) -> None:
    """In the table of topics and in the glossary."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    assert [topic.value for topic in Control if f"{topic.value}`" not in text] == []
