"""Tables with unusual names are captured like any other; their names are never executed or confused."""

from __future__ import annotations

from psycopg import sql

from cdc.config.tables import quote_identifier
from cdc.names import topic
from tests.harness.comparison.comparer import assert_exactly_once, assert_same, source_reader, topic_reader
from tests.harness.kafka.records import read_topic
from tests.harness.kafka.topics import create_topic
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.processes.process import Process

SCHEMA = 'odd "schema" %s'
TABLES = [
    'x"; DROP TABLE t;--',
    "x'); DROP TABLE t;--",
    "100%",
    "%(name)s %b %",
    "back\\slash\\",
    "new\nline\tand tab",
    "Ünïcödé 🐘 表",
    "select",
    " ",
    "$1",
    "{} {0}",
    "é" * 31,
]
COLUMNS = ['a"b', "a'b", "%s", "100%", "\\", "\\u0041", "ключ 🐘", "two\nlines", "{}", "$1", "null", "__truncate"]


def test_odd_names_are_streamed_and_nothing_is_executed(make_pipeline: MakePipeline) -> None:
    """Inserts, re-selects, key changes, deletes and truncates work for a table of any name."""
    pipeline = make_pipeline(
        source={
            "publication": 'pub"; DROP TABLE t;-- %s',
            "tables": [f"{quote_identifier(SCHEMA)}.*", "public.t", "public.deferred"],
        }
    )
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    database.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))  # type: ignore[arg-type]
    tables = [sql.Identifier(SCHEMA, name) for name in TABLES] + [sql.Identifier("deferred")]
    columns = sql.SQL(", ").join(sql.SQL("{} text").format(sql.Identifier(name)) for name in COLUMNS)
    key = sql.SQL(", ").join(sql.Identifier(name) for name in reversed(COLUMNS[:4]))
    values = sql.SQL(", ").join(sql.Literal(f"{name} %s ' \"") for name in COLUMNS)
    toasted = sql.SQL("(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 300))")
    first, last = sql.Identifier(COLUMNS[0]), sql.Identifier(COLUMNS[-1])

    def everywhere(statement: str) -> None:
        for table in tables:
            parts = {"table": table, "columns": columns, "key": key, "values": values, "big": toasted}
            database.execute(sql.SQL(statement).format(first=first, last=last, **parts))  # type: ignore[arg-type]

    everywhere('CREATE TABLE {table} ({columns}, "big %" text, PRIMARY KEY ({key}))')
    database.execute(
        sql.SQL("ALTER TABLE deferred DROP CONSTRAINT deferred_pkey, ADD PRIMARY KEY ({}) DEFERRABLE").format(key)  # type: ignore[arg-type]
    )
    database.execute("ALTER TABLE deferred REPLICA IDENTITY FULL")
    capture = pipeline.start()
    everywhere("INSERT INTO {table} VALUES ({values}, {big})")
    everywhere("TRUNCATE {table}")
    everywhere("INSERT INTO {table} VALUES ({values}, {big})")
    everywhere("UPDATE {table} SET {last} = 'the long value is left alone'")
    pipeline.fence(while_running=capture)  # before the key changes: otherwise that event may be left out
    everywhere("INSERT INTO {table} ({key}) VALUES ('1', '2', '3', '4'), ('5', '6', '7', '8')")
    everywhere("UPDATE {table} SET {first} = {first} || ' moved'")
    everywhere(
        "UPDATE {table} SET {first} = {first} || {first}; UPDATE {table} SET {first} = 'x' WHERE {first} LIKE '4%'"
    )
    everywhere("DELETE FROM {table} WHERE {first} LIKE '8%'")
    _assert_same(pipeline, capture, [table.as_string() for table in tables])
    assert database.execute("SELECT * FROM t") == [(1,)]


def test_tables_whose_names_differ_by_dots_or_case_have_their_own_topics(make_pipeline: MakePipeline) -> None:
    """Tables whose names differ only by dots or case never share a topic."""
    names = [("a", "b.c"), ("a.b", "c"), ("A", "b.c"), ("a", "B.c"), ("a", "b-2ec"), ("a", "b/c"), ("a", "b_c")]
    pipeline = make_pipeline(source={"tables": sorted({f'"{schema}".*' for schema, _ in names})})
    database = pipeline.database
    for schema, table in names:
        database.execute(
            f'CREATE SCHEMA IF NOT EXISTS "{schema}"; CREATE TABLE "{schema}"."{table}" (id int PRIMARY KEY)'
        )
    capture = pipeline.start()
    for number, (schema, table) in enumerate(names):
        database.execute(f'INSERT INTO "{schema}"."{table}" VALUES ({number})')
    pipeline.fence(while_running=capture)
    for number, (schema, table) in enumerate(names):
        records = read_topic(pipeline.bootstrap, topic(pipeline.prefix, schema, table))
        assert [record.value["after"] for record in records] == [{"id": number}]


def test_a_topic_name_that_kafka_refuses_is_refused_with_the_reason(make_pipeline: MakePipeline) -> None:
    """Kafka accepts no `a.b_c` where `a_b.c` exists; capture refuses with the reason and does not retry."""
    pipeline = make_pipeline(source={"tables": ["a.b_c"]})
    pipeline.database.execute("CREATE SCHEMA a; CREATE TABLE a.b_c (id int PRIMARY KEY)")
    create_topic(pipeline.bootstrap, topic(pipeline.prefix, "a_b", "c"))
    capture = pipeline.launch()
    capture.expect_exit(3, 60)
    assert "collides with" in capture.errors


def _assert_same(pipeline: Pipeline, capture: Process, tables: list[str]) -> None:
    pipeline.fence(while_running=capture)
    described = pipeline.database.describe(*tables)
    source, target = source_reader(pipeline.database.dsn), topic_reader(pipeline.bootstrap, pipeline.prefix)
    assert_same(described, source, target, deadline_seconds=0)
    for table in described:
        records = read_topic(pipeline.bootstrap, topic(pipeline.prefix, table.schema, table.name))
        assert_exactly_once(records)
        assert {record.op for record in records} == {"c", "u", "d", "t", None}
