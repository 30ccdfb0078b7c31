"""Checks every internal link of the documents, anchors included, and every path to a document or module.

Run by `make lint` (`python -m tests.harness.docs.links`); needs no network. Anchors are GitHub's; for the site,
`mkdocs build --strict` checks the same links.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
_FENCE = re.compile(r"^(`{3,}).*?^\1`*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_DOCUMENT = re.compile(r"(?<![\w/.])docs/[\w/-]+\.(?:md|png)")
_MODULE = re.compile(r"(?<![\w/.])(?:cdc|deploy|sinks|spark_jobs)/[\w/]+\.(?:py|pyx)\b")
_ELSEWHERE = re.compile(r"[a-z]+:", re.IGNORECASE)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[(.*?)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    found: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        name = slug(heading)
        found[name] = found.get(name, 0) + 1
    return set(found) | {f"{name}-{n}" for name, count in found.items() for n in range(1, count)}


def broken_links(page: Path) -> Iterator[str]:
    """The targets of a page's links that do not exist."""
    text = _CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    for target in _LINK.findall(text):
        if _ELSEWHERE.match(target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            yield target


def problems(files: list[Path]) -> Iterator[str]:
    for file in files:
        if file.suffix == ".md":
            yield from (f"{file.relative_to(ROOT)}: no such link: {target}" for target in broken_links(file))
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        mentioned = set(_DOCUMENT.findall(text)) | set(_MODULE.findall(text) if file.suffix == ".md" else ())
        for path in sorted(mentioned):
            if "NAME" not in path and not (ROOT / path).exists():
                yield f"{file.relative_to(ROOT)}: no such file: {path}"


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


if __name__ == "__main__":
    found = list(problems(tracked()))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(1 if found else 0)
