"""What the catalog of a real server says of tables and their partitions."""

from __future__ import annotations

import pytest

from cdc.tables.catalog_state import read_catalog_states
from cdc.tables.recorded_state import TableState, why_incomplete
from tests.harness.postgres.database import Database

ROOT = "CREATE TABLE r (id int, k int DEFAULT 5 NOT NULL, v text, PRIMARY KEY (k, id)) PARTITION BY LIST (k)"


def read(database: Database, name: str) -> TableState:
    ((oid,),) = database.execute("SELECT %s::regclass::oid::text", [name])
    return read_catalog_states(database.connect(), [oid], prefix="shop")[oid]


def leaves(database: Database, name: str) -> dict[str, bool]:
    """The leaf partitions, by name."""
    return {
        database.execute("SELECT %s::oid::regclass::text", [oid])[0][0]: born
        for oid, born in read(database, name).leaves.items()
    }


def test_a_table_as_it_is(database: Database) -> None:
    """A table has its key in key order, its columns without dropped ones, its fill values and its published columns."""
    database.execute("CREATE DOMAIN seven AS int DEFAULT 7")
    database.execute(
        'CREATE TABLE "T" (id int, gone int, k int, d seven, i int GENERATED ALWAYS AS IDENTITY,'
        " s int GENERATED ALWAYS AS (id) STORED, w int GENERATED ALWAYS AS (id) VIRTUAL, n numeric(5, 2) DEFAULT 1,"
        " PRIMARY KEY (k, id) INCLUDE (n))"
    )
    database.execute('ALTER TABLE "T" DROP COLUMN gone')
    state = read(database, '"T"')
    assert (state.schema, state.table, state.topic) == ("public", "T", "shop.public.T")
    assert (state.key, state.leaves) == (["k", "id"], {})
    assert [(c.number, c.name, c.has_default, c.is_streamed) for c in state.columns] == [
        (1, "id", False, True),
        (3, "k", False, True),
        (4, "d", True, True),
        (5, "i", True, True),
        (6, "s", True, True),
        (7, "w", True, False),
        (8, "n", True, True),
    ]
    assert state.columns[-1].type_modifier == (5 << 16 | 2) + 4


def test_partitions_that_were_born_empty_are_told_from_attached_ones(database: Database) -> None:
    """A partition that was created empty differs from an attached one, also within one transaction."""
    database.execute(ROOT)
    database.execute("CREATE TABLE born PARTITION OF r FOR VALUES IN (1)")
    database.execute("CREATE TABLE born_odd PARTITION OF r (v DEFAULT 'x', CHECK (id > 0)) FOR VALUES IN (2)")
    database.execute(
        "BEGIN; CREATE TABLE born_filled PARTITION OF r FOR VALUES IN (3); INSERT INTO r VALUES (1, 3); COMMIT"
    )
    database.execute("CREATE TABLE above PARTITION OF r FOR VALUES IN (4) PARTITION BY LIST (id)")
    database.execute("CREATE TABLE born_below PARTITION OF above FOR VALUES IN (1)")
    database.execute("CREATE TABLE attached (LIKE r INCLUDING ALL)")
    database.execute("ALTER TABLE r ATTACH PARTITION attached FOR VALUES IN (5)")
    database.execute(
        "BEGIN; CREATE TABLE at_once (LIKE r INCLUDING ALL); INSERT INTO at_once VALUES (1, 6);"
        " ALTER TABLE r ATTACH PARTITION at_once FOR VALUES IN (6); COMMIT"
    )
    database.execute("CREATE TABLE again PARTITION OF r FOR VALUES IN (7)")
    here = read(database, "r")
    database.execute("ALTER TABLE r DETACH PARTITION again")
    database.execute("ALTER TABLE r ATTACH PARTITION again FOR VALUES IN (7)")
    assert why_incomplete(here, read(database, "r")) == "a partition was detached and attached again"
    database.execute("CREATE TABLE branch (LIKE r INCLUDING ALL) PARTITION BY LIST (id)")
    database.execute("CREATE TABLE attached_with_branch PARTITION OF branch FOR VALUES IN (1)")
    database.execute("ALTER TABLE r ATTACH PARTITION branch FOR VALUES IN (8)")
    expected = {
        "born": True,
        "born_odd": True,
        "born_filled": True,
        "born_below": True,
        "attached": False,
        "at_once": False,
        "again": False,
        "attached_with_branch": False,
    }
    assert leaves(database, "r") == expected
    before = read(database, "r")
    database.execute("ALTER TABLE r ADD COLUMN w int, ALTER COLUMN v SET STATISTICS 10")
    database.execute("VACUUM (FREEZE) pg_attribute; ")
    database.execute("VACUUM (FREEZE) pg_inherits")
    assert leaves(database, "r") == expected
    assert why_incomplete(before, read(database, "r")) is None


def test_a_default_that_is_gone_again_has_filled_the_rows_of_partitions(database: Database) -> None:
    """A dropped default still counts as having filled the rows of partitions, at any depth."""
    database.execute(ROOT + "; CREATE TABLE r_1 PARTITION OF r FOR VALUES IN (1) PARTITION BY LIST (id)")
    database.execute("CREATE TABLE r_1_1 PARTITION OF r_1 FOR VALUES IN (1)")
    before = read(database, "r")
    database.execute("ALTER TABLE r ADD COLUMN nothing int")
    assert why_incomplete(before, read(database, "r")) is None
    database.execute("ALTER TABLE r ADD COLUMN c int DEFAULT 7; ALTER TABLE r ALTER COLUMN c DROP DEFAULT")
    assert why_incomplete(before, read(database, "r")) == "column c was added with a default"


def test_unlogged_partitions_are_left_out_until_they_are_logged(database: Database) -> None:
    """Unlogged partitions are left out, since the log has no changes of their rows."""
    database.execute(ROOT + "; CREATE TABLE r_1 PARTITION OF r FOR VALUES IN (1)")
    database.execute("CREATE UNLOGGED TABLE r_2 PARTITION OF r FOR VALUES IN (2)")
    assert leaves(database, "r") == {"r_1": True}
    before = read(database, "r")
    database.execute("INSERT INTO r VALUES (1, 2)")
    assert why_incomplete(before, read(database, "r")) is None
    database.execute("ALTER TABLE r_2 SET LOGGED")
    assert why_incomplete(before, read(database, "r")) == "a partition is unlogged no longer"
    logged = read(database, "r")
    database.execute("ALTER TABLE r_2 SET UNLOGGED")
    assert why_incomplete(logged, read(database, "r")) == "a partition was detached or dropped"


def test_what_is_no_table_of_its_own_is_left_out(database: Database) -> None:
    """Partitions and dropped tables are left out."""
    database.execute(ROOT + "; CREATE TABLE leaf PARTITION OF r DEFAULT; CREATE TABLE gone (id int PRIMARY KEY)")
    oids = [row[0] for row in database.execute("SELECT oid::text FROM pg_class WHERE relname IN ('leaf', 'gone')")]
    database.execute("DROP TABLE gone")
    assert read_catalog_states(database.connect(), oids, prefix="shop") == {}


@pytest.mark.parametrize(
    ("statement", "rewritten"),
    [
        ("VACUUM FULL r_1", True),
        ("TRUNCATE r", True),
        ("ALTER TABLE r ALTER COLUMN v TYPE text USING v || 'x'", True),
        ("CREATE INDEX ON r (v)", False),
        ("INSERT INTO r VALUES (1, 1, 'x')", False),
    ],
)
def test_a_rewrite_of_any_partition_shows(database: Database, statement: str, rewritten: bool) -> None:
    """A rewrite of any leaf counts as a rewrite of the partitioned table."""
    database.execute(ROOT + "; CREATE TABLE r_1 PARTITION OF r FOR VALUES IN (1)")
    before = read(database, "r")
    database.execute(statement)
    after = read(database, "r")
    assert (before.storage != after.storage) is rewritten
    reason = "the table was rewritten with column v" if "TYPE" in statement else None
    assert why_incomplete(before, after) == reason


def test_type_changes_that_alter_a_values_text_are_noticed(database: Database) -> None:
    """Renamed enum labels and composite attributes are noticed through arrays and domains; harmless changes are not."""
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN moods AS mood[]")
    database.execute("CREATE TYPE pair AS (number int, mood mood)")
    database.execute("CREATE TABLE by_domain (id int PRIMARY KEY, m moods); CREATE TABLE by_pair (id int, p pair[])")
    names = ("by_domain", "by_pair")
    before = {name: read(database, name) for name in names}
    assert sorted(before["by_domain"].forms.values()) == ["ok", "sad"]
    database.execute("ALTER TYPE mood ADD VALUE 'great' BEFORE 'sad'; ALTER TYPE pair RENAME ATTRIBUTE number TO n")
    assert [why_incomplete(before[name], read(database, name)) for name in names] == [None, None]
    altered = "a type of its columns was altered"
    database.execute("ALTER TYPE pair ADD ATTRIBUTE more text")
    assert [why_incomplete(before[name], read(database, name)) for name in names] == [None, altered]
    before = {name: read(database, name) for name in names}
    database.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
    assert [why_incomplete(before[name], read(database, name)) for name in names] == [altered, altered]
