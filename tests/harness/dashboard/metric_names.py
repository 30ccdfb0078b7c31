"""The metrics of a scrape, and those that the files under deploy/ and the documentation use."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_NAME = re.compile(r"\btailrace_[a-z_]+[a-z]\b")
USERS = ("deploy/grafana/tailrace.json", "deploy/prometheus/alerts.yml", "docs/reference/metrics.md")


def names_scraped(scrape: str) -> set[str]:
    """The names in a scrape, also those without a sample because their value is unknown."""
    return {line.split()[2] for line in scrape.splitlines() if line.startswith("# TYPE ")}


def names_used() -> dict[str, set[str]]:
    return {name: set(_NAME.findall((_ROOT / name).read_text(encoding="utf-8"))) for name in USERS}
