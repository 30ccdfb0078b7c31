"""During schema changes every row has the columns of its write time, and missing values are recorded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.pipeline.table_states import marks, rows_after, schema_versions, wait_for_look
from tests.harness.processes.process import StartProcess
from tests.harness.snapshot.incremental_snapshot import copy_due
from tests.harness.stores.clean_audit import assert_clean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each with a table of its own: (id int PRIMARY KEY, a int NOT NULL, n varchar(10), s int GENERATED … STORED).
CHANGES = [
    ("ALTER TABLE {} ADD COLUMN c int", None),
    ("ALTER TABLE {} ADD COLUMN c int DEFAULT 7", "column c was added with a default"),
    ("ALTER TABLE {} ADD COLUMN c int GENERATED ALWAYS AS IDENTITY", "column c was added with a default"),
    ("ALTER TABLE {} ADD COLUMN c seven", "column c was added with a default"),
    ("ALTER TABLE {} ADD COLUMN c int GENERATED ALWAYS AS (a) STORED", "column c was added with a default"),
    ("ALTER TABLE {} ADD COLUMN c int GENERATED ALWAYS AS (a) VIRTUAL", None),
    # As migrations do it: the default is there for the rows that exist, and for them only.
    (
        "ALTER TABLE {0} ADD COLUMN c int DEFAULT 7 NOT NULL; ALTER TABLE {0} ALTER COLUMN c DROP DEFAULT",
        "column c was added with a default",
    ),
    (
        "ALTER TABLE {0} ADD COLUMN c float DEFAULT random(); ALTER TABLE {0} ALTER COLUMN c DROP DEFAULT",
        "column c was added and the table rewritten",
    ),
    ("ALTER TABLE {} ALTER COLUMN s DROP EXPRESSION", None),
    ("ALTER TABLE {} ALTER COLUMN a SET DEFAULT 8", None),
    ("ALTER TABLE {} ALTER COLUMN n SET NOT NULL", None),
    ("ALTER TABLE {} DROP COLUMN n", None),
    ("ALTER TABLE {} DROP COLUMN n, ADD COLUMN n varchar(10) DEFAULT 'x'", "column n was added with a default"),
    ("ALTER TABLE {} DROP COLUMN n, ADD COLUMN n varchar(10)", "column n was dropped and added again"),
    ("ALTER TABLE {} RENAME COLUMN a TO aa", "column a was renamed to aa"),
    (
        "ALTER TABLE {0} RENAME COLUMN a TO aa; INSERT INTO {0} VALUES (2, 2); ALTER TABLE {0} RENAME COLUMN aa TO a",
        "column a was renamed and renamed back",
    ),
    ("ALTER TABLE {} RENAME COLUMN id TO key", "column id was renamed to key"),
    ("ALTER TABLE {} ALTER COLUMN n TYPE text USING 'x' || n", "column n changed its type"),
    ("ALTER TABLE {} ALTER COLUMN n TYPE varchar(2) USING left(n, 2)", "column n changed its type"),
    ("ALTER TABLE {} ALTER COLUMN n TYPE varchar(10) USING n || 'x'", "the table was rewritten with column n"),
    ("ALTER TABLE {0} DROP CONSTRAINT {0}_pkey, ADD PRIMARY KEY (a)", "its key changed"),
    ("ALTER TABLE {0} DROP CONSTRAINT {0}_pkey, ADD PRIMARY KEY (id)", None),
    ("VACUUM FULL {}", None),
    ("CLUSTER {0} USING {0}_pkey", None),
    ("CREATE INDEX ON {} (a)", None),
]


def test_every_row_has_the_columns_it_was_written_with(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """Each row has the columns of its write time, across DDL in a transaction and a crash before the confirmation.

    The snapshot that is due afterwards makes the topic equal to the table.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
    capture = pipeline.start()
    database.execute("INSERT INTO t VALUES (0, 0, 'zero')")
    pipeline.fence(while_running=capture)
    connection = database.connect(autocommit=False)
    for statement in (
        "INSERT INTO t VALUES (1, 1, 'one')",
        "ALTER TABLE t ADD COLUMN c int",
        "INSERT INTO t VALUES (2, 2, 'two', 2)",
        "ALTER TABLE t DROP COLUMN a",
        "INSERT INTO t VALUES (3, 'three', 3)",
        "ALTER TABLE t RENAME COLUMN b TO bb",
        "INSERT INTO t VALUES (4, 'four', 4)",
        "ALTER TABLE t ALTER COLUMN c TYPE text USING 'c' || c",
        "INSERT INTO t VALUES (5, 'five', 'c5')",
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "ALTER TABLE t ADD COLUMN m mood",
        "INSERT INTO t VALUES (6, 'six', 'c6', 'good')",
        "ALTER TABLE t DROP COLUMN m",
        "DROP TYPE mood",
        "DELETE FROM t WHERE id = 0",
    ):
        connection.execute(statement)
    capture.kill()
    connection.commit()
    database.execute("ALTER TABLE t RENAME COLUMN id TO key")
    database.execute("INSERT INTO t VALUES (7, 'seven', 'c7')")
    capture = pipeline.start()
    pipeline.fence(while_running=capture)
    capture.kill()  # what is sent again now must not be published again, whatever the catalog says by then
    database.execute("ALTER TABLE t DROP COLUMN bb")
    capture = pipeline.start()
    pipeline.fence(while_running=capture)
    written = [record for record in pipeline.records("t") if record.op == "c"]
    by_version = sorted(written, key=lambda record: (record.version, record.offset))
    assert [record.value["after"] for record in by_version] == [
        {"id": 0, "a": 0, "b": "zero"},
        {"id": 1, "a": 1, "b": "one"},
        {"id": 2, "a": 2, "b": "two", "c": 2},
        {"id": 3, "b": "three", "c": 3},
        {"id": 4, "bb": "four", "c": 4},
        {"id": 5, "bb": "five", "c": "c5"},
        {"id": 6, "bb": "six", "c": "c6", "m": "good"},
        {"key": 7, "bb": "seven", "c": "c7"},
    ]
    assert [list(json.loads(record.key)) for record in by_version] == [["id"]] * 7 + [["key"]]
    assert schema_versions(pipeline, "t") == [
        ["id", "a", "b"],
        ["id", "a", "b", "c"],
        ["id", "b", "c"],
        ["id", "bb", "c"],
        ["id", "bb", "c"],
        ["id", "bb", "c", "m"],
        ["id", "bb", "c"],
        ["key", "bb", "c"],
    ]
    assert copy_due(pipeline, spark).is_complete
    pipeline.assert_same("t", while_running=capture)
    assert_clean(pipeline.config, spark)


def test_what_changes_rows_without_row_events_is_marked(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """A schema change that alters rows without row events marks the table incomplete until it is copied; another does
    not.

    It makes no difference whether capture runs during the change.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE DOMAIN seven AS int DEFAULT 7")
    for when in ("running", "down"):
        for number in range(len(CHANGES)):
            database.execute(
                f"CREATE TABLE {when}{number} (id int PRIMARY KEY, a int NOT NULL, n varchar(10),"
                " s int GENERATED ALWAYS AS (a + 1) STORED)"
            )
            database.execute(f"INSERT INTO {when}{number} VALUES (1, 1, 'x')")
    capture = pipeline.start()
    wait_for_look(pipeline, capture)
    for number, (statement, _) in enumerate(CHANGES):
        database.execute(statement.format(f"running{number}"))
    wait_for_look(pipeline, capture)
    expected = {f"running{number}": reason for number, (_, reason) in enumerate(CHANGES) if reason}
    assert marks(pipeline) == expected
    capture.terminate()
    capture.expect_exit(0)
    for number, (statement, _) in enumerate(CHANGES):
        database.execute(statement.format(f"down{number}"))
    capture = pipeline.start()
    wait_for_look(pipeline, capture)
    expected |= {f"down{number}": reason for number, (_, reason) in enumerate(CHANGES) if reason}
    assert marks(pipeline) == expected

    status = tailrace("capture", "--config", str(pipeline.config), "--status", "--json")
    status.expect_exit(0)
    shown = json.loads(status.output)["tables"]
    reasons = {each["table"]: each.get("reason") for each in shown if not each.get("by_choice")}
    assert {each["table"].removeprefix("public."): reasons.get(each["table"]) for each in shown} == {
        f"{when}{number}": reason for when in ("running", "down") for number, (_, reason) in enumerate(CHANGES)
    }
    assert all(each["complete"] is ("since" not in each) for each in shown)


def test_rows_written_while_a_key_is_replaced_are_published(make_pipeline: MakePipeline) -> None:
    """Rows inserted between dropping a key and adding another one are published.

    A table that stays without a key is left out and marked, and the others flow.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    for name in ("t", "keyless", "other"):
        database.execute(f"CREATE TABLE {name} (id int NOT NULL, code int NOT NULL, PRIMARY KEY (id))")
    capture = pipeline.start()
    database.execute("INSERT INTO t VALUES (1, 10)")
    pipeline.fence(while_running=capture)
    capture.kill()
    database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    database.execute("INSERT INTO t VALUES (2, 20)")
    database.execute("ALTER TABLE t ADD PRIMARY KEY (code)")
    database.execute("INSERT INTO t VALUES (3, 30)")
    capture = pipeline.start()
    wait_for_look(pipeline, capture)
    assert rows_after(pipeline, "t") == [{"id": number, "code": number * 10} for number in (1, 2, 3)]
    assert marks(pipeline) == {"t": "its key changed"}

    database.execute("INSERT INTO keyless VALUES (1, 10)")
    database.execute("ALTER TABLE keyless DROP CONSTRAINT keyless_pkey, REPLICA IDENTITY FULL")
    wait_for_look(pipeline, capture)
    database.execute(
        "INSERT INTO keyless VALUES (2, 20); UPDATE keyless SET code = 30; INSERT INTO other VALUES (1, 1)"
    )
    pipeline.assert_same("other", while_running=capture)
    assert [row["id"] for row in rows_after(pipeline, "keyless")] == [1]
    database.execute("ALTER TABLE keyless ADD PRIMARY KEY (id)")
    database.execute("INSERT INTO keyless VALUES (3, 30)")
    wait_for_look(pipeline, capture)
    assert [row["id"] for row in rows_after(pipeline, "keyless")] == [1, 3]
    assert marks(pipeline) == dict.fromkeys(("t", "keyless"), "its key changed")


def test_a_value_left_out_by_toast_may_be_retyped_or_gone_by_now(make_pipeline: MakePipeline) -> None:
    """The re-select queries the column as it was; a retyped or dropped one is left to the snapshot that is due."""
    pipeline = make_pipeline()
    database = pipeline.database
    large = "(SELECT array_agg(i) FROM generate_series(1, 5000) i)"
    for name in ("retyped", "key_retyped", "renamed", "dropped", "table_dropped", "same"):
        database.execute(f"CREATE TABLE {name} (id text PRIMARY KEY, n int, doc int[])")
        database.execute(f"ALTER TABLE {name} ALTER COLUMN doc SET STORAGE EXTERNAL")
        database.execute(f"INSERT INTO {name} VALUES ('1a', 1, {large})")
    capture = pipeline.start()
    pipeline.fence(while_running=capture)
    capture.kill()
    for name in ("retyped", "key_retyped", "renamed", "dropped", "table_dropped", "same"):
        database.execute(f"UPDATE {name} SET n = 2")
    database.execute("ALTER TABLE retyped ALTER COLUMN doc TYPE text USING '{not an array'")
    database.execute("ALTER TABLE key_retyped ALTER COLUMN id TYPE int USING 1")
    database.execute("ALTER TABLE renamed RENAME COLUMN doc TO document")
    database.execute("ALTER TABLE dropped DROP COLUMN doc")
    database.execute("DROP TABLE table_dropped")
    capture = pipeline.start()
    pipeline.assert_same("same", while_running=capture)
    wait_for_look(pipeline, capture)
    assert marks(pipeline) == {
        "retyped": "column doc changed its type",
        "key_retyped": "column id changed its type",
        "renamed": "column doc was renamed to document",
    }
    assert rows_after(pipeline, "dropped") == [{"id": "1a", "n": 2, "doc": None}]


@pytest.mark.parametrize("when", ["running", "down"])
@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (("DROP PUBLICATION tailrace", "CREATE PUBLICATION tailrace FOR TABLE t"), "ublication"),
        (("ALTER PUBLICATION tailrace DROP TABLE t", "ALTER PUBLICATION tailrace ADD TABLE t"), "was re-created or"),
    ],
    ids=["publication re-created", "table out and in"],
)
def test_a_publication_changed_by_hand_is_refused(
    make_pipeline: MakePipeline, when: str, statements: tuple[str, str], words: str
) -> None:
    """A publication changed while capture was down is refused with exit code 3, since changes in between were never
    sent.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = pipeline.start()
    database.execute("INSERT INTO t VALUES (1)")
    pipeline.fence(while_running=capture)
    if when == "down":
        capture.terminate()
        capture.expect_exit(0)
    database.execute("; ".join((statements[0], "INSERT INTO t VALUES (2)", statements[1])))
    if when == "down":
        capture = pipeline.launch()
    capture.expect_exit(3, 60)
    assert words in capture.errors, capture.transcript()
    assert [row["id"] for row in rows_after(pipeline, "t")] == [1]
