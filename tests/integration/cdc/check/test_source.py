"""`tailrace check` on a real Postgres: every fault that tables, publication, slot or database can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cdc.check import Finding, Level, inspect
from tests.harness.pipeline.check_runs import assert_found, assert_no_fail, make_config, slot_name
from tests.harness.postgres.database import Database

Inspect = Callable[..., list[Finding]]
KEYED = "CREATE TABLE t (id int PRIMARY KEY, v text)"


@pytest.fixture
def run(database: Database, kafka_bootstrap: str, prefix: str) -> Inspect:
    """Check the test's database; the arguments are keys of [source]."""

    def inspect_with(**source: Any) -> list[Finding]:
        return inspect(make_config(database.dsn, kafka_bootstrap, prefix, source=source))

    return inspect_with


def test_a_good_source_has_no_failure(database: Database, run: Inspect) -> None:
    """A source that capture can start on has no failure, and check says what capture would create."""
    database.execute(KEYED)
    found = run()
    assert_no_fail(found)
    assert_found(found, Level.OK, "server", "wal_level is logical")
    assert_found(found, Level.OK, "server", "replication slots are in use")
    assert_found(found, Level.OK, "server", "WAL senders are in use")
    assert_found(found, Level.OK, "table public.t", "has the key (id)")
    assert_found(found, Level.OK, "publication tailrace", "creates it on its first start")
    assert_found(found, Level.WARN, "role", "superuser", "create role")
    assert_found(found, Level.WARN, "server", "max_slot_wal_keep_size is -1", "alter system set max_slot_wal_keep_size")


TABLES = {
    "no primary key": (["CREATE TABLE t (v text)"], "no primary key", "alter table public.t add primary key"),
    "identity nothing": (
        [KEYED, "ALTER TABLE t REPLICA IDENTITY NOTHING"],
        "replica identity is NOTHING",
        "alter table public.t replica identity default;",
    ),
    "deferrable key": (
        ["CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)"],
        "deferrable",
        "alter table public.t replica identity full;",
    ),
    "identity index without the key": (
        [
            "CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL UNIQUE)",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key",
        ],
        "index without the whole primary key",
        "alter table public.t replica identity default;",
    ),
    "unlogged": (
        ["CREATE UNLOGGED TABLE t (id int PRIMARY KEY)"],
        "unlogged",
        "alter table public.t set logged;",
    ),
    "missing": ([], "does not exist", "[source] tables"),
    "a view": (["CREATE VIEW t AS SELECT 1 AS id"], "a view", "Remove it from [source] tables."),
}


@pytest.mark.parametrize(("statements", "what", "remedy"), TABLES.values(), ids=TABLES.keys())
def test_a_table_that_cannot_be_captured(
    database: Database, run: Inspect, statements: list[str], what: str, remedy: str
) -> None:
    """A table that cannot be captured fails with the reason and the exact SQL; another table passes."""
    database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    for statement in statements:
        database.execute(statement)
    found = run(tables=["public.t", "public.other"])
    assert_found(found, Level.FAIL, "table public.t", what, remedy)
    assert_found(found, Level.OK, "table public.other", "has the key")


def test_tables_selected_by_a_wildcard_are_checked(database: Database, run: Inspect) -> None:
    """Under `schema.*` a table without a key fails, an unlogged one gives a warning, and an empty schema fails."""
    database.execute(KEYED)
    database.execute("CREATE TABLE keyless (v int)")
    database.execute("CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)")
    found = run(tables=["public.*", "nowhere.*"])
    assert_found(found, Level.FAIL, "table public.keyless", "no primary key")
    assert_found(found, Level.WARN, "table public.unlogged", "leaves it out")
    assert_found(found, Level.FAIL, "table nowhere.*", "no such schema")


def test_identities_that_are_good(database: Database, run: Inspect) -> None:
    """FULL, an index with the whole key and a deferrable key under FULL pass; generated columns are reported."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    database.execute("ALTER TABLE a REPLICA IDENTITY FULL")
    database.execute("CREATE TABLE b (id int PRIMARY KEY, code int NOT NULL, UNIQUE (code, id))")
    database.execute("ALTER TABLE b REPLICA IDENTITY USING INDEX b_code_id_key")
    database.execute("CREATE TABLE c (id int PRIMARY KEY DEFERRABLE)")
    database.execute("ALTER TABLE c REPLICA IDENTITY FULL")
    found = run()
    assert_no_fail(found)
    assert_found(found, Level.OK, "table public.a", "replica identity FULL")
    assert_found(found, Level.OK, "table public.a", "generated columns (twice)")


def test_remedies_quote_names(database: Database, run: Inspect) -> None:
    """The SQL of a remedy runs as printed for names with reserved words, capitals or quotes."""
    database.execute('CREATE TABLE "order" (id int PRIMARY KEY)')
    database.execute('CREATE TABLE "A""b" (id int PRIMARY KEY)')
    for table in ('"order"', '"A""b"'):
        database.execute(f"ALTER TABLE {table} REPLICA IDENTITY NOTHING")
    found = run()
    first = assert_found(found, Level.FAIL, "table public.order", 'alter table public."order" replica identity')
    second = assert_found(found, Level.FAIL, 'table public.A"b', 'alter table public."A""b" replica identity')
    for finding in (first, second):
        assert finding.remedy is not None
        database.execute(finding.remedy.partition("run: ")[2].partition(";")[0])
    assert_no_fail(run())


WHOLE = "CREATE PUBLICATION tailrace FOR TABLE ONLY t, ONLY u"
PUBLICATIONS = {
    "all tables": (["CREATE PUBLICATION tailrace FOR ALL TABLES"], "FOR ALL TABLES", "drop publication tailrace;"),
    "schema": (
        ["CREATE PUBLICATION tailrace FOR TABLES IN SCHEMA public"],
        "FOR TABLES IN SCHEMA public",
        "create publication tailrace for table only public.t",
    ),
    "no deletes": ([f"{WHOLE} WITH (publish = 'insert, update')"], "delete, truncate", "set (publish = 'insert,"),
    "through the root": (
        [f"{WHOLE} WITH (publish_via_partition_root)"],
        "publish_via_partition_root is true",
        "set (publish_via_partition_root = false)",
    ),
    "row filter": (
        ["CREATE PUBLICATION tailrace FOR TABLE t WHERE (id > 5), u"],
        "WHERE (id > 5)",
        "alter publication tailrace drop table public.t;",
    ),
    "column list": (
        ["CREATE PUBLICATION tailrace FOR TABLE t (id), u"],
        "column list",
        "alter publication tailrace add table only public.t;",
    ),
    "a table short": (
        ["CREATE PUBLICATION tailrace FOR TABLE t"],
        "lacks public.u",
        "alter publication tailrace add table only public.u;",
    ),
}


@pytest.mark.parametrize(("statements", "what", "remedy"), PUBLICATIONS.values(), ids=PUBLICATIONS.keys())
def test_a_publication_that_leaves_something_out(
    database: Database, run: Inspect, statements: list[str], what: str, remedy: str
) -> None:
    """A publication that omits a table, an operation, rows or columns fails."""
    for statement in (KEYED, "CREATE TABLE u (id int PRIMARY KEY)", *statements):
        database.execute(statement)
    assert_found(run(), Level.FAIL, "publication tailrace", what, remedy)


@pytest.mark.parametrize("name", ["row filter", "column list"])
def test_a_filter_that_the_config_allows_is_only_a_warning(database: Database, run: Inspect, name: str) -> None:
    """With `allow_publication_filters` a filter gives only a warning."""
    statements, what, _ = PUBLICATIONS[name]
    for statement in (KEYED, "CREATE TABLE u (id int PRIMARY KEY)", *statements):
        database.execute(statement)
    found = run(allow_publication_filters=True)
    assert_found(found, Level.WARN, "publication tailrace", what)
    assert_no_fail(found)


def test_a_publication_with_everything(database: Database, run: Inspect) -> None:
    """A publication made beforehand passes; an extra table in it gives a warning."""
    for statement in (KEYED, "CREATE TABLE u (id int PRIMARY KEY)", WHOLE):
        database.execute(statement)
    found = run()
    assert_no_fail(found)
    assert_found(found, Level.OK, "publication tailrace", "has every selected table")
    found = run(tables=["public.t"])
    assert_found(found, Level.WARN, "publication tailrace", "also has public.u", "drop table public.u;")


DATABASE_SETTINGS = [
    ("wal_sender_timeout", "0", "a standby capture cannot take over"),
    ("wal_sender_timeout", "1s", "a short pause"),
    ("logical_decoding_work_mem", "1MB", "spills larger transactions to disk"),
]


@pytest.mark.parametrize(("name", "value", "what"), DATABASE_SETTINGS)
def test_a_harmful_setting_is_reported(database: Database, run: Inspect, name: str, value: str, what: str) -> None:
    """A harmful setting of capture's sessions is reported with the statement that changes it."""
    database.execute(KEYED)
    database.execute(
        sql.SQL("ALTER DATABASE {} SET {} = {}")
        .format(sql.Identifier(database.name), sql.Identifier(name), sql.Literal(value))
        .as_string(None)
    )
    assert_found(run(), Level.WARN, "server", f"{name} is {value}", what, f"alter system set {name} = ")


def test_prepared_transactions_hold_up_the_slot(database: Database, run: Inspect) -> None:
    """A prepared transaction, which would delay the slot, gives a warning with the way to end it."""
    database.execute(KEYED)
    assert_found(run(), Level.OK, "server", "no prepared transaction")
    with psycopg.connect(database.dsn) as connection:
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        connection.execute("PREPARE TRANSACTION 'check'")
    assert_found(run(), Level.WARN, "server", "1 prepared transactions", "rollback prepared")


@pytest.fixture
def ascii_database(postgres_url: str, prefix: str) -> Iterator[str]:
    name = sql.Identifier(f"ascii_{prefix}")
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} ENCODING 'SQL_ASCII' TEMPLATE template0").format(name))
        yield postgres_url.rpartition("/")[0] + f"/ascii_{prefix}"
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def test_another_encoding_is_warned_of(ascii_database: str, kafka_bootstrap: str, prefix: str) -> None:
    """An encoding other than UTF8 gives a warning, and SQL_ASCII says what can happen."""
    found = inspect(make_config(ascii_database, kafka_bootstrap, prefix))
    assert_found(found, Level.WARN, "server", "SQL_ASCII", "UTF8", "stops capture")


def test_a_slot_that_is_not_ours(database: Database, run: Inspect, prefix: str, postgres_url: str) -> None:
    """A physical slot, another database's slot and a slot without a progress record are each reported."""
    database.execute(KEYED)
    name = slot_name(prefix)
    place = f"slot {name}"
    database.execute("SELECT pg_create_physical_replication_slot(%s)", [name])
    assert_found(run(), Level.FAIL, place, "physical slot", "another [source] slot")
    database.execute("SELECT pg_drop_replication_slot(%s)", [name])
    with psycopg.connect(postgres_url, autocommit=True) as elsewhere:
        elsewhere.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        assert_found(run(), Level.FAIL, place, "belongs to something else")
        elsewhere.execute("SELECT pg_drop_replication_slot(%s)", [name])
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    found = run()
    assert_found(found, Level.FAIL, place, "no progress record", f"pg_drop_replication_slot('{name}')")
    assert_found(found, Level.OK, place, "it is not active")
    assert_found(found, Level.OK, place, "of WAL")
