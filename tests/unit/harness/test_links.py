"""The link checker of `make lint` finds broken links."""

from __future__ import annotations

from pathlib import Path

from tests.harness.docs.links import broken_links, slug


def test_a_link_to_a_missing_page_or_heading_is_found(tmp_path: Path) -> None:
    """A missing page or heading is found; links in code and to other servers are ignored."""
    (tmp_path / "there.md").write_text("# Title\n\n## `[source.tls]`\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#sourcetls) [c](there.md#twice-1) [d](https://example.com/x) `[e](gone.md)`\n"
        "[f](gone.md) [g](there.md#gone) [h](#nowhere)\n\n```\n[i](gone.md)\n```\n"
    )
    assert list(broken_links(page)) == ["gone.md", "there.md#gone", "#nowhere"]


def test_an_anchor_is_made_as_github_makes_it() -> None:
    """The anchor of a heading is the one that GitHub makes."""
    assert slug("Capture has refused: `tailrace recover`") == "capture-has-refused-tailrace-recover"
    assert slug("`<prefix>.__parked`") == "prefix__parked"
