"""Reads docs/reference/types.md: the examples whose JSON forms the tests check, and the types that they need."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOC = Path(__file__).parents[2] / "docs" / "reference" / "types.md"

_HEADER = re.compile(r"^\| Type \| SQL \| JSON \| Debezium \|", re.MULTILINE)
_CELLS = re.compile(r"(?<!\\)\|")
_SETUP = re.compile(r"```sql\n(.*?)```", re.DOTALL)
_SINCE = re.compile(r"Postgres (\d+) and later")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One row of a table. `debezium` is its JSON, "same", or "left out" where Debezium drops the column."""

    type: str
    sql: str
    json: str
    debezium: str
    since: int  # the first Postgres major that knows the value


def read_examples(path: Path = DOC) -> list[Example]:
    """Every row of every table that has the header `| Type | SQL | JSON | Debezium |`."""
    text = path.read_text()
    examples: list[Example] = []
    for header in _HEADER.finditer(text):
        for line in text[header.start() :].splitlines()[2:]:
            if not line.startswith("|"):
                break
            examples.append(_example(line))
    return examples


def read_setup(path: Path = DOC) -> str:
    """The document's one block of SQL: extensions and types that the examples use."""
    block = _SETUP.search(path.read_text())
    if block is None:
        raise ValueError(f"{path} has no block of SQL")
    return block[1]


def _example(line: str) -> Example:
    cells = [_plain(cell) for cell in _CELLS.split(line)[1:-1]]
    since = _SINCE.search(cells[4])
    return Example(type=cells[0], sql=cells[1], json=cells[2], debezium=cells[3], since=int(since[1]) if since else 0)


def _plain(cell: str) -> str:
    return cell.strip().removeprefix("`").removesuffix("`").strip().replace("\\|", "|")
