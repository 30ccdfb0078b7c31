"""No topic and no log line has a value that `[mask]` or `[columns]` withholds."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest

from tests.harness.kafka.raw_records import read_raw, topics_under
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.processes.process import Process

SALT = "pepper-and-salt"
SECRET = "s3cr3t-of-a-person"
NOISE = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) n)"  # long enough to be stored out of line


def _hash(text: str) -> str:
    return hmac.new(SALT.encode(), text.encode(), hashlib.sha256).hexdigest()


def _configure(
    pipeline: Pipeline, *, mask: dict[str, str] | None = None, columns: dict[str, list[str]] | None = None
) -> None:
    with pipeline.config.open("a") as config:
        for section, lines in (("mask", mask), ("columns", columns)):
            config.write(f"[{section}]\n" if lines else "")
            config.writelines(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in (lines or {}).items())


def _make(make_pipeline: MakePipeline, **settings: Any) -> Pipeline:
    return make_pipeline(capture={"mask_salt": SALT}, **settings)


def _assert_nowhere(pipeline: Pipeline, capture: Process, *texts: str) -> None:
    """No record, aborted ones included, and no output of the process has the secret."""
    topics = topics_under(pipeline.bootstrap, pipeline.prefix)
    assert f"{pipeline.prefix}.__progress" in topics
    records = read_raw(pipeline.bootstrap, *topics, committed=False)
    for text in (*texts, SALT):
        found = {record.topic for record in records if record.holds(text.encode())}
        assert not found, f"{text} is in {found}"
        assert text not in capture.output + capture.errors


def _after(pipeline: Pipeline, table: str) -> list[dict[str, Any]]:
    return [record.value["after"] for record in pipeline.records(table) if record.value and record.value["after"]]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_masked_values_are_nowhere(make_pipeline: MakePipeline, identity: str) -> None:
    """Inserts, updates, TOASTed values, key changes, deletes and rows too large to publish leak no masked value."""
    pipeline = _make(make_pipeline, kafka={"max_message_bytes": 100_000})
    database = pipeline.database
    database.execute(
        "CREATE TABLE people (id int PRIMARY KEY, email text, phone text, born date, bio text, note text);"
        f"ALTER TABLE people REPLICA IDENTITY {identity};"
        "ALTER TABLE people ALTER email SET STORAGE EXTERNAL, ALTER bio SET STORAGE EXTERNAL"
    )
    masks = {"email": "hash", "phone": "null", "born": "fixed:hidden", "bio": "fixed:"}
    _configure(pipeline, mask={f"public.people.{name}": mask for name, mask in masks.items()})
    capture = pipeline.start()
    long = SECRET + "x" * 9000
    database.execute("INSERT INTO people VALUES (1, %s, %s, '1977-07-07', %s, 'a')", [SECRET, SECRET, SECRET])
    database.execute("INSERT INTO people VALUES (2, %s, %s, '1977-07-07', %s, 'a')", [long, SECRET, long])
    database.execute("INSERT INTO people VALUES (3, NULL, NULL, NULL, NULL, 'a')")
    database.execute("UPDATE people SET note = 'b'")
    pipeline.fence(while_running=capture)  # a re-select leaves out what is gone by then
    database.execute("UPDATE people SET id = 22, note = 'c' WHERE id = 2")
    database.execute("UPDATE people SET note = repeat('y', 200000) WHERE id = 1")  # parked
    pipeline.fence(while_running=capture)
    database.execute("DELETE FROM people WHERE id = 22")
    pipeline.fence(while_running=capture)
    _assert_nowhere(pipeline, capture, SECRET, "1977-07-07")
    rows = _after(pipeline, "people")
    masked = {"phone": None, "born": "hidden", "bio": ""}
    assert {"id": 1, "email": _hash(SECRET), **masked, "note": "a"} in rows
    assert {"id": 2, "email": _hash(long), **masked, "note": "b"} in rows
    assert {"id": 22, "email": _hash(long), **masked, "note": "c"} in rows
    nothing = dict.fromkeys(("email", "phone", "born", "bio"))
    assert [row for row in rows if row["id"] == 3] == [{"id": 3, **nothing, "note": note} for note in "ab"]
    (parked,) = read_raw(pipeline.bootstrap, f"{pipeline.prefix}.__parked")
    assert json.loads(parked.value)["key"] == '{"id":1}'


def test_masked_keys_are_hashed_alike_everywhere(make_pipeline: MakePipeline) -> None:
    """A masked key has one hash in all tables and types, and the events of a row share one record key."""
    pipeline = _make(make_pipeline)
    database = pipeline.database
    database.execute(
        "CREATE TABLE people (email text PRIMARY KEY, bio text);"
        "ALTER TABLE people ALTER bio SET STORAGE EXTERNAL;"
        "CREATE TABLE logins (email varchar(100), n int, PRIMARY KEY (n, email));"
        "CREATE TABLE seats (email text PRIMARY KEY DEFERRABLE, n int);"
        "ALTER TABLE seats REPLICA IDENTITY FULL"
    )
    _configure(pipeline, mask={f"public.{table}.email": "hash" for table in ("people", "logins", "seats")})
    capture = pipeline.start()
    other = SECRET + "-2"
    database.execute(f"INSERT INTO people VALUES ('{SECRET}', {NOISE}), ('{other}', 'short')")
    database.execute(f"INSERT INTO logins VALUES ('{SECRET}', 7)")
    database.execute("UPDATE people SET email = email || '!'")  # re-selected by the masked key
    database.execute(f"UPDATE people SET email = '{SECRET}' WHERE email = '{SECRET}!'")
    database.execute("DELETE FROM people WHERE bio = 'short'")
    database.execute(f"INSERT INTO seats VALUES ('{SECRET}', 1), ('{other}', 2)")
    database.execute(  # keys that pass through each other: asked for at commit
        "BEGIN; SET CONSTRAINTS ALL DEFERRED;"
        f"UPDATE seats SET email = CASE email WHEN '{SECRET}' THEN '{other}' ELSE '{SECRET}' END; COMMIT"
    )
    pipeline.fence(while_running=capture)
    _assert_nowhere(pipeline, capture, SECRET)
    ((key, bio),) = _last(pipeline, "people").items()
    assert key == {"email": _hash(SECRET)}["email"]
    assert len(bio["bio"]) == 9600
    assert [json.loads(record.key) for record in pipeline.records("logins")] == [{"n": 7, "email": _hash(SECRET)}]
    assert {key: row["n"] for key, row in _last(pipeline, "seats").items()} == {_hash(other): 1, _hash(SECRET): 2}


def _last(pipeline: Pipeline, table: str) -> dict[str, dict[str, Any]]:
    last = {record.key: record for record in pipeline.records(table)}
    return {
        json.loads(key)["email"]: record.value["after"] for key, record in last.items() if record.op not in (None, "d")
    }


def test_masks_and_columns_of_a_partitioned_table(make_pipeline: MakePipeline) -> None:
    """Masks and columns of a partitioned table hold for every partition, also with another column order."""
    pipeline = _make(make_pipeline)
    database = pipeline.database
    database.execute(
        "CREATE TABLE visits (id int, day date, email text, secret text, PRIMARY KEY (id, day))"
        " PARTITION BY RANGE (day);"
        "CREATE TABLE visits_old PARTITION OF visits FOR VALUES FROM (MINVALUE) TO ('2020-01-01');"
        "CREATE TABLE visits_new (secret text, email text, day date NOT NULL, id int NOT NULL, PRIMARY KEY (id, day));"
        "ALTER TABLE visits ATTACH PARTITION visits_new FOR VALUES FROM ('2020-01-01') TO (MAXVALUE)"
    )
    _configure(pipeline, mask={"public.visits.email": "hash"}, columns={"public.visits": ["id", "day", "email"]})
    capture = pipeline.start()
    database.execute(f"INSERT INTO visits SELECT n, '2019-12-31', '{SECRET}', '{SECRET}' FROM generate_series(1, 3) n")
    database.execute("UPDATE visits SET day = '2020-01-01' WHERE id = 2")
    pipeline.fence(while_running=capture)
    _assert_nowhere(pipeline, capture, SECRET)
    rows = _after(pipeline, "visits")
    assert len(rows) == 4
    assert {row["email"] for row in rows} == {_hash(SECRET)}
    assert {tuple(row) for row in rows} == {("id", "day", "email")}


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_columns_that_are_not_listed_do_not_leave(make_pipeline: MakePipeline, identity: str) -> None:
    """Unlisted columns, later ones included, have neither their values nor their names in events and schema records."""
    pipeline = _make(make_pipeline)
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (hidden text, id int PRIMARY KEY, shown text, bulky text);"
        f"ALTER TABLE t REPLICA IDENTITY {identity}; ALTER TABLE t ALTER bulky SET STORAGE EXTERNAL"
    )
    _configure(pipeline, columns={"public.t": ["shown", "id"]})
    capture = pipeline.start()
    database.execute(f"INSERT INTO t VALUES ('{SECRET}', 1, 'a', '{SECRET}' || {NOISE})")
    database.execute("UPDATE t SET shown = 'b'")
    database.execute(f"ALTER TABLE t ADD COLUMN later text; UPDATE t SET later = '{SECRET}', shown = 'c'")
    database.execute("DELETE FROM t")
    pipeline.fence(while_running=capture)
    _assert_nowhere(pipeline, capture, SECRET)
    assert _after(pipeline, "t") == [{"id": 1, "shown": shown} for shown in "abc"]
    for record in read_raw(pipeline.bootstrap, pipeline.topic("t")):
        assert not record.holds(b"hidden")
        assert not record.holds(b"bulky")
    schemas = [json.loads(each.value) for each in read_raw(pipeline.bootstrap, f"{pipeline.prefix}.__schema")]
    described = [[column["name"] for column in each["columns"]] for each in schemas if "columns" in each]
    assert described
    assert all(names == ["id", "shown"] for names in described)


@pytest.mark.parametrize(
    ("mask", "columns", "words"),
    [
        ({"public.t.id": "null"}, {}, "part of the key"),
        ({}, {"public.t": ["v"]}, "leaves out a column of its key"),
        ({"public.t.emial": "hash"}, {}, "has no column 'emial'"),
        ({"public.leaf.v": "hash"}, {}, "public.leaf is not a captured table"),
        ({}, {"public.t": ["id", "w"]}, "has no column 'w'"),
    ],
)
def test_an_impossible_mask_is_refused_before_the_slot_is_made(
    make_pipeline: MakePipeline, mask: dict[str, str], columns: dict[str, list[str]], words: str
) -> None:
    """A mistyped column name or a key masked to one value is refused with exit code 3, and no slot is made."""
    pipeline = _make(make_pipeline)
    pipeline.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE leaf PARTITION OF p DEFAULT"
    )
    _configure(pipeline, mask=mask, columns=columns)
    capture = pipeline.launch()
    capture.expect_exit(3)
    assert words in capture.errors, capture.transcript()
    assert (
        pipeline.database.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", [pipeline.slot_name]) == []
    )


@pytest.mark.parametrize("rename", ["RENAME COLUMN email TO mail", "RENAME TO persons"])
def test_a_mask_that_a_rename_took_away_stops_capture(make_pipeline: MakePipeline, rename: str) -> None:
    """When a masked column is renamed, capture refuses until the new name is masked, and then loses nothing."""
    pipeline = _make(make_pipeline)
    database = pipeline.database
    database.execute("CREATE TABLE people (id int PRIMARY KEY, email text)")
    _configure(pipeline, mask={"public.people.email": "hash"})
    capture = pipeline.start()
    database.execute(f"INSERT INTO people VALUES (1, '{SECRET}')")
    table, column = ("persons", "email") if "persons" in rename else ("people", "mail")
    database.execute(f"BEGIN; ALTER TABLE people {rename}; INSERT INTO {table} VALUES (2, '{SECRET}'); COMMIT")
    capture.expect_exit(3, 60)
    assert f"public.{table}.{column}, which is not" in capture.errors, capture.transcript()
    again = pipeline.launch()
    again.expect_exit(3, 60)
    _configure(pipeline, mask={})
    with pipeline.config.open("a") as config:
        config.write(f'"public.{table}.{column}" = "hash"\n')
    third = pipeline.start()
    pipeline.fence(while_running=third)
    for process in (capture, again, third):
        _assert_nowhere(pipeline, process, SECRET)
    assert {"id": 2, column: _hash(SECRET)} in _after(pipeline, table)


def test_a_column_renamed_there_and_back_is_not_let_out(make_pipeline: MakePipeline) -> None:
    """Rows written while a masked column had another name for a time are masked as well."""
    pipeline = _make(make_pipeline)
    database = pipeline.database
    database.execute("CREATE TABLE people (id int PRIMARY KEY, email text)")
    _configure(pipeline, mask={"public.people.email": "hash"})
    capture = pipeline.start()
    capture.terminate()
    capture.expect_exit(0)
    database.execute("ALTER TABLE people RENAME COLUMN email TO mail")
    database.execute(f"INSERT INTO people VALUES (1, '{SECRET}')")
    database.execute("ALTER TABLE people RENAME COLUMN mail TO email")
    capture = pipeline.start()
    pipeline.fence(while_running=capture)
    _assert_nowhere(pipeline, capture, SECRET)
    assert _after(pipeline, "people") == [{"id": 1, "mail": _hash(SECRET)}]


def test_a_retyped_key_is_not_shown_by_a_failing_query(make_pipeline: MakePipeline) -> None:
    """When the old key's text is no value of the new key type, capture continues and no output quotes the key."""
    pipeline = _make(make_pipeline)
    database = pipeline.database
    database.execute("CREATE TABLE people (email text PRIMARY KEY, bio text, n int)")
    database.execute("ALTER TABLE people ALTER bio SET STORAGE EXTERNAL")
    _configure(pipeline, mask={"public.people.email": "hash"})
    capture = pipeline.start()
    database.execute(f"INSERT INTO people VALUES ('{SECRET}', {NOISE}, 1)")
    pipeline.fence(while_running=capture)
    capture.kill()
    database.execute("UPDATE people SET n = 2")
    database.execute("DELETE FROM people; ALTER TABLE people ALTER email TYPE int USING 0")
    database.execute("INSERT INTO people VALUES (7, 'x', 3)")
    capture = pipeline.start()
    pipeline.fence(while_running=capture)
    _assert_nowhere(pipeline, capture, SECRET)
    assert {key: row["n"] for key, row in _last(pipeline, "people").items()} == {_hash("7"): 3}
