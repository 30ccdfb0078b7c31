"""Capture publishes changed, swapped and re-used keys correctly, and keys of every type that Postgres can index."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deploy.stack import Stack
from tests.harness.network.proxy import Proxy
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.processes.process import Process

# Random text, so that it neither compresses nor fits into the row: Postgres keeps it outside, and leaves it out of
# the stream when an update does not touch it.
TOASTED = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 400))"

# How a table's rows pass through each other's keys within one transaction; each starts with the rows 1 to 6.
DEFERRED_MOVES = {
    "shift": ["UPDATE shift SET id = id + 1"],
    "shift_back": ["UPDATE shift_back SET id = id - 1"],
    "swap": ["UPDATE swap SET id = CASE id WHEN 1 THEN 2 ELSE 1 END WHERE id IN (1, 2)"],
    "chain": ["UPDATE chain SET id = id % 6 + 1"],
    "in_steps": [
        "UPDATE in_steps SET id = 2 WHERE who = 'row 1'",
        "UPDATE in_steps SET who = 'changed in between' WHERE who = 'row 2'",
        "UPDATE in_steps SET id = 3 WHERE who = 'changed in between'",
        "DELETE FROM in_steps WHERE who = 'row 3'",
    ],
    "there_and_back": ["UPDATE there_and_back SET id = id + 10", "UPDATE there_and_back SET id = id - 10"],
    "onto_a_deleted": ["DELETE FROM onto_a_deleted WHERE id = 4", "UPDATE onto_a_deleted SET id = 4 WHERE id = 5"],
    "before_the_delete": [
        "UPDATE before_the_delete SET id = 4 WHERE id = 5",
        "DELETE FROM before_the_delete WHERE who = 'row 4'",
    ],
    "insert_first": [
        "INSERT INTO insert_first VALUES (2, 'a second two', 'x')",
        "UPDATE insert_first SET id = 20 WHERE who = 'row 2'",
    ],
    "vanish": ["UPDATE vanish SET id = id + 1", "DELETE FROM vanish"],
    "emptied": ["TRUNCATE emptied", "INSERT INTO emptied VALUES (3, 'new', 'x')"],
    "undone": ["SAVEPOINT a", "UPDATE undone SET id = id + 1", "ROLLBACK TO a", "UPDATE undone SET id = 7 - id"],
}

# A type, and the text of one value of it: the re-select must find the row again by the text that the stream gave.
KEY_TYPES = {
    "char(5)": "abc",
    "bit(4)": "1010",
    "bit varying": "10101",
    "int[]": "{1,2,NULL}",
    "text[]": '{"a,b","{}",NULL}',
    "bytea": r"\x00ff5c27",
    "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "numeric": "1.500",
    "float8": "0.1",
    "date": "0044-03-15 BC",
    "timestamptz": "2024-02-29 12:34:56.789+02",
    "interval": "1 year 2 months -3 days 04:05:06",
    "colour": "bl'ue, dark",
    "positive": "42",
    "pair": '(1,"a, ""b""")',
    "boolean": "t",
    '"char"': "x",
    "inet": "10.0.0.1/8",
    "jsonb": '{"a": [1, "x"]}',
    "int4range": "[1,10)",
    "money": "-1234.56",
    "name": "pg_class",
    "regclass": "pg_class",
    "varchar(20)": '{"quoted\\\\" \'; --',
    "text": "",
    "oid": "4294967295",
    "pg_lsn": "1/2",
    # Their operators are in a schema that is not on the default search path.
    "extra.hstore": '"a b"=>"1", "c"=>NULL',
    "extra.citext": "MiXed",
    "extra.wrapped": '"x"=>"y"',
}


def test_a_primary_key_change_moves_the_row(make_pipeline: MakePipeline) -> None:
    """A key change publishes a delete and a tombstone for the old key and the whole row for the new one, under one
    version.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (a int, b text, big text, PRIMARY KEY (b, a))")
    capture = pipeline.start()
    database.execute(f"INSERT INTO t VALUES (1, 'x', {TOASTED}), (2, 'y', {TOASTED}), (3, 'z', 'small')")
    database.execute("UPDATE t SET a = 10 WHERE a = 1")
    database.execute("UPDATE t SET b = 'yy', big = 'other' WHERE a = 2")
    pipeline.assert_same("t", while_running=capture)
    ours = [record for record in pipeline.records("t") if record.key in (b'{"b":"x","a":1}', b'{"b":"x","a":10}')]
    assert [record.op for record in ours if record.key == b'{"b":"x","a":1}'] == ["c", "d", None]
    assert [record.op for record in ours if record.key == b'{"b":"x","a":10}'] == ["c"]
    assert len({record.version for record in ours}) == 2, "an insert, and a move under one version"


def test_a_replica_identity_by_an_index_that_holds_the_key(make_pipeline: MakePipeline) -> None:
    """When old rows carry more than the primary key, the record's key is still the primary key alone."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL, v text, big text, UNIQUE (code, id))")
    database.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_id_key")
    capture = pipeline.start()
    database.execute(f"INSERT INTO t SELECT i, i * 10, 'first', {TOASTED} FROM generate_series(1, 6) i")
    database.execute("UPDATE t SET v = 'second' WHERE id = 1")
    database.execute("UPDATE t SET code = 21 WHERE id = 2")  # of the index, not of the key: the row stays where it is
    pipeline.fence(while_running=capture)  # before the key changes: otherwise an event may be left out
    database.execute("UPDATE t SET id = 30 WHERE id = 3")
    database.execute("UPDATE t SET id = 40, code = 41 WHERE id = 4")
    database.execute("DELETE FROM t WHERE id = 5")
    records = pipeline.assert_same("t", while_running=capture)["t"]

    def ops(key: int) -> list[str | None]:
        return [record.op for record in records if record.key == b'{"id":%d}' % key]

    assert [ops(key) for key in (1, 2, 6)] == [["c", "u"], ["c", "u"], ["c"]]
    assert [ops(key) for key in (3, 4, 5)] == [["c", "d", None]] * 3
    assert [ops(key) for key in (30, 40)] == [["c"]] * 2


def test_a_key_may_be_deleted_and_used_again_in_one_transaction(make_pipeline: MakePipeline) -> None:
    """The topic has the row that holds a key at commit, however often the key was deleted and used again."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, big text)")
    capture = pipeline.start()
    database.execute(f"INSERT INTO t SELECT i, 'first', {TOASTED} FROM generate_series(1, 4) i")
    database.execute(
        "BEGIN; DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, 'second', 'x'); COMMIT;"
        "BEGIN; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (2, 'second', 'x');"
        "       DELETE FROM t WHERE id = 2; COMMIT;"
        "BEGIN; UPDATE t SET id = 30 WHERE id = 3; UPDATE t SET id = 3 WHERE id = 4;"
        "      UPDATE t SET v = 'was 3' WHERE id = 30; COMMIT;"
    )
    pipeline.assert_same("t", while_running=capture)


def test_rows_may_pass_through_each_others_deferrable_keys(make_pipeline: MakePipeline) -> None:
    """With deferrable keys that shift, swap or rotate, the topic has the row that holds each key at commit."""
    pipeline = make_pipeline()
    database = pipeline.database
    for name in DEFERRED_MOVES:
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, who text, big text);"
            f"ALTER TABLE {name} REPLICA IDENTITY FULL"
        )
    capture = pipeline.start()
    for name, moves in DEFERRED_MOVES.items():
        database.execute(f"INSERT INTO {name} SELECT i, 'row ' || i, {TOASTED} FROM generate_series(1, 6) i")
        database.execute(f"BEGIN; {'; '.join(moves)}; COMMIT")
    pipeline.assert_same(*DEFERRED_MOVES, while_running=capture)


def test_all_keys_of_a_large_table_shift_with_crashes_between(
    make_pipeline: MakePipeline, stack: Stack, start_proxy: Callable[[str, int], Proxy]
) -> None:
    """When capture is killed while it queries shifted keys at commit, the remaining rows follow and none is published
    twice.
    """
    postgres = stack.server("postgres")
    proxy = start_proxy(postgres.host, postgres.port)
    pipeline = make_pipeline(proxy=proxy, capture={"transaction_events": 1000})
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, who text);"
        "ALTER TABLE t REPLICA IDENTITY FULL"
    )
    capture = pipeline.start()
    database.execute("INSERT INTO t SELECT n, 'row ' || n FROM generate_series(1, 10000) n")
    pipeline.fence(while_running=capture)
    proxy.limit(300_000)  # slow enough for all of this to happen inside it
    database.execute("UPDATE t SET id = id + 1")
    reached = 10_000
    for end in (Process.kill, Process.terminate):
        capture.wait_for(lambda: pipeline.progress_records()[-1]["seq"] > reached, what="corrections")  # noqa: B023
        end(capture)
        capture.wait()
        last = pipeline.progress_records()[-1]
        assert last["inside_transaction"], "it went through: no test"
        reached = last["seq"]
        capture = pipeline.start()
    proxy.restore()
    records = pipeline.assert_same("t", while_running=capture)["t"]
    assert len(records) == 10_000 + 3 * 10_000 + 9_999
    assert sum(record.op == "u" for record in records) == 9_999


def test_two_rows_swap_composite_deferrable_keys_again_and_again(make_pipeline: MakePipeline) -> None:
    """Later swaps do not change the published result of earlier ones, although rows are queried later."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (room text, seat int, who text, PRIMARY KEY (room, seat) DEFERRABLE);"
        "ALTER TABLE t REPLICA IDENTITY FULL;"
        "INSERT INTO t VALUES ('a', 1, 'before the start')"
    )
    capture = pipeline.start()
    database.execute("DELETE FROM t; INSERT INTO t VALUES ('a', 1, 'x'), ('a', 2, 'y'), ('b', 1, 'z')")
    for turn in range(40):
        database.execute(
            "BEGIN; SET CONSTRAINTS ALL DEFERRED;"
            f"UPDATE t SET seat = 3 - seat, who = who || '{turn % 10}' WHERE room = 'a';"
            "UPDATE t SET room = CASE room WHEN 'a' THEN 'b' ELSE 'a' END WHERE seat = 1; COMMIT"
        )
    pipeline.assert_same("t", while_running=capture)


def test_rows_are_found_again_by_keys_of_every_type(make_pipeline: MakePipeline) -> None:
    """The re-select completes an update that leaves out a TOASTed value for a key of any type."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute(
        "CREATE TYPE colour AS ENUM ('red', 'bl''ue, dark'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);"
        "CREATE TYPE pair AS (a int, b text); CREATE SCHEMA extra; CREATE EXTENSION hstore SCHEMA extra;"
        "CREATE EXTENSION citext SCHEMA extra; CREATE DOMAIN extra.wrapped AS extra.hstore"
    )
    tables = {f"keyed_{number}": (type_, value) for number, (type_, value) in enumerate(KEY_TYPES.items())}
    for table, (type_, _) in tables.items():
        database.execute(f"CREATE TABLE {table} (n int, key {type_} PRIMARY KEY, big text)")
    capture = pipeline.start()
    for table, (_, value) in tables.items():
        quoted = "'" + value.replace("'", "''") + "'"
        database.execute(f"INSERT INTO {table} VALUES (1, {quoted}, {TOASTED})")
        database.execute(f"UPDATE {table} SET n = 2")
    pipeline.assert_same(*tables, while_running=capture)
    unfilled = [table for table in tables if "reselected" not in pipeline.records(table)[-1].value["source"]]
    assert not unfilled, "these updates were to be completed"


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_key_that_is_toasted_itself_is_whole(make_pipeline: MakePipeline, identity: str) -> None:
    """A long, compressed key that is itself TOASTed is whole in every event."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute(
        f"CREATE TABLE t (id text PRIMARY KEY, n int, big text); ALTER TABLE t REPLICA IDENTITY {identity}"
    )
    database.execute("ALTER TABLE t ALTER big SET STORAGE MAIN, ALTER big SET COMPRESSION pglz")
    capture = pipeline.start()
    database.execute(f"INSERT INTO t VALUES (repeat('x', 150000), 1, left({TOASTED}, 5000)), ('short', 1, {TOASTED})")
    database.execute("UPDATE t SET n = 2")
    database.execute("UPDATE t SET id = repeat('y', 140000) WHERE id <> 'short'")
    database.execute("UPDATE t SET n = 3")
    pipeline.assert_same("t", while_running=capture)
