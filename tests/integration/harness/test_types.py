"""The comparer treats as equal what docs/reference/types.md promises."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness.comparison import canonical
from tests.harness.comparison.comparer import source_reader
from tests.harness.postgres.database import Database

_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "types.md"
_EXAMPLE = re.compile(r"^\| `(?P<type>[^`]+)` \| `(?P<sql>[^`]+)` \| `(?P<json>[^`]+)` \|", re.MULTILINE)
_SETUP = re.compile(r"```sql\n(.*?)```", re.DOTALL)


def test_every_documented_form_is_read_as_the_value_it_stands_for(database: Database) -> None:
    """Each example of the page, inserted into a real server, equals the JSON that the page gives for it."""
    page = _PAGE.read_text()
    database.execute("".join(_SETUP.findall(page)))
    examples = [match for match in _EXAMPLE.finditer(page) if not match["type"].startswith("pgvector")]
    assert len(examples) > 100
    columns = ", ".join(f"c{number} {match['type']}" for number, match in enumerate(examples))
    database.execute(f"CREATE TABLE examples (id integer PRIMARY KEY, {columns})")
    database.execute(f"INSERT INTO examples VALUES (1, {', '.join(match['sql'] for match in examples)})")
    (table,) = database.describe("examples")
    row = source_reader(database.dsn)(table)[(1,)]
    wrong = []
    for number, match in enumerate(examples):
        read = canonical.from_json(table.type_of(f"c{number}"), canonical.loads(match["json"]))
        if read != row[f"c{number}"]:
            wrong.append(f"{match[0]}: {row[f'c{number}']!r} became {read!r}")
    assert not wrong, "\n".join(wrong)
