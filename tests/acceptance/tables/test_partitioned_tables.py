"""A partitioned table is one logical table with one topic, whatever partitions are added and removed."""

from __future__ import annotations

from tests.harness.kafka.topics import list_topics
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.pipeline.table_states import (
    markers,
    marks,
    rows_after,
    schema_versions,
    states,
    wait_for_look,
    wait_for_markers,
)

ROOT = "CREATE TABLE {0} (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region)"


def make_root(pipeline: Pipeline, name: str, *regions: str) -> None:
    pipeline.database.execute(ROOT.format(name))
    for region in regions:
        pipeline.database.execute(f"CREATE TABLE {name}_{region} PARTITION OF {name} FOR VALUES IN ('{region}')")


def table_topics(pipeline: Pipeline) -> set[str]:
    return {name for name in list_topics(pipeline.bootstrap) if name.startswith(f"{pipeline.prefix}.public.")}


def column_orders(pipeline: Pipeline, table: str) -> set[tuple[str, ...]]:
    """The column orders of the rows in its topic."""
    return {tuple(record.value["after"]) for record in pipeline.records(table) if record.op in ("c", "u")}


def test_a_partitioned_table_is_one_topic(make_pipeline: MakePipeline) -> None:
    """Rows of every leaf have the root's column order, also after moves between partitions and a TRUNCATE of the
    root.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    make_root(pipeline, "r", "eu", "us")
    database.execute("CREATE TABLE odd (gone int, v text, region text NOT NULL, id int NOT NULL)")
    database.execute("ALTER TABLE odd DROP COLUMN gone; ALTER TABLE odd ADD PRIMARY KEY (id, region)")
    database.execute("ALTER TABLE r ATTACH PARTITION odd FOR VALUES IN ('asia')")
    database.execute("CREATE TABLE r_rest PARTITION OF r DEFAULT PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE r_rest_low PARTITION OF r_rest FOR VALUES FROM (0) TO (1000)")
    database.execute("CREATE TABLE r_rest_high PARTITION OF r_rest FOR VALUES FROM (1000) TO (2000)")
    capture = pipeline.start()
    wait_for_look(pipeline, capture)
    regions = "ARRAY['eu', 'us', 'asia', 'moon']"
    database.execute(f"INSERT INTO r SELECT i, ({regions})[i % 4 + 1], 'v' || i FROM generate_series(1, 200) i")
    pipeline.fence(while_running=capture)
    assert column_orders(pipeline, "r") == {("id", "region", "v")}
    database.execute("UPDATE r SET region = 'asia' WHERE id % 5 = 0")
    database.execute("UPDATE r SET id = id + 1000, v = NULL WHERE region = 'moon' AND id < 50")
    database.execute("DELETE FROM r WHERE id % 7 = 0")
    # A partition that is made while capture runs is simply there.
    database.execute("CREATE TABLE r_mars PARTITION OF r FOR VALUES IN ('mars')")
    database.execute("INSERT INTO r SELECT i, 'mars', 'v' FROM generate_series(300, 310) i")
    pipeline.assert_same("r", while_running=capture)
    wait_for_look(pipeline, capture)
    database.execute("TRUNCATE r")
    database.execute("INSERT INTO r VALUES (1, 'eu', 'after'), (1, 'mars', 'after')")
    pipeline.assert_same("r", while_running=capture)
    wait_for_look(pipeline, capture)
    assert markers(pipeline, "r") == 2
    assert marks(pipeline) == {}
    assert table_topics(pipeline) == {pipeline.topic("r")}
    assert schema_versions(pipeline, "r") == [["id", "region", "v"]]


def test_partitions_that_come_and_go_with_rows_are_noticed(make_pipeline: MakePipeline) -> None:
    """Attaching or detaching a partition with rows makes the table incomplete and empties no topic."""
    pipeline = make_pipeline(source={"tables": [f"public.r{number}" for number in range(10)] + ["public.other"]})
    database = pipeline.database
    for number in range(10):
        make_root(pipeline, f"r{number}", "eu", "us")
    database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    capture = pipeline.start()
    wait_for_look(pipeline, capture)
    for number in range(10):
        database.execute(f"INSERT INTO r{number} VALUES (1, 'eu', 'x'), (2, 'us', 'y')")
    pipeline.fence(while_running=capture)

    database.execute("TRUNCATE r0_eu, other")
    database.execute("CREATE TABLE filled (LIKE r1 INCLUDING ALL)")
    database.execute("INSERT INTO filled VALUES (3, 'asia', 'x')")
    database.execute("ALTER TABLE r1 ATTACH PARTITION filled FOR VALUES IN ('asia')")
    # All in one transaction: what was written before the ATTACH is not in the stream.
    database.execute(
        "BEGIN; CREATE TABLE at_once (LIKE r2 INCLUDING ALL); INSERT INTO at_once VALUES (3, 'asia', 'x');"
        " ALTER TABLE r2 ATTACH PARTITION at_once FOR VALUES IN ('asia'); COMMIT"
    )
    database.execute("ALTER TABLE r3 DETACH PARTITION r3_eu")
    database.execute("ALTER TABLE r4 DETACH PARTITION r4_eu CONCURRENTLY")
    database.execute("DROP TABLE r5_eu")
    # Comes and goes between two looks at the catalog.
    database.execute("CREATE TABLE r6_asia PARTITION OF r6 FOR VALUES IN ('asia')")
    database.execute("INSERT INTO r6 VALUES (3, 'asia', 'short-lived')")
    pipeline.fence(while_running=capture)
    database.execute("DROP TABLE r6_asia")
    # No rows come or go with these.
    database.execute("CREATE TABLE r7_asia PARTITION OF r7 FOR VALUES IN ('asia') PARTITION BY LIST (id)")
    database.execute("CREATE TABLE r7_asia_3 PARTITION OF r7_asia FOR VALUES IN (3)")
    database.execute("TRUNCATE r8")
    # Nothing tells what is written to a partition while it is away.
    database.execute(
        "BEGIN; ALTER TABLE r9 DETACH PARTITION r9_eu; UPDATE r9_eu SET v = 'unseen';"
        " ALTER TABLE r9 ATTACH PARTITION r9_eu FOR VALUES IN ('eu'); COMMIT"
    )
    wait_for_look(pipeline, capture)
    assert marks(pipeline) == {
        "r0": "a partition was truncated",
        "r1": "a partition was attached",
        "r2": "a partition was attached",
        "r3": "a partition was detached or dropped",
        "r4": "a partition was detached or dropped",
        "r5": "a partition was detached or dropped",
        "r6": "a partition was detached or dropped",
        "r9": "a partition was detached and attached again",
    }
    assert [markers(pipeline, f"r{number}") for number in range(10)] == [0] * 8 + [2, 0]
    assert markers(pipeline, "other") == 2
    for number in range(10):
        database.execute(f"INSERT INTO r{number} VALUES (9, 'us', 'goes on')")
    database.execute("INSERT INTO r1 VALUES (9, 'asia', 'goes on')")
    pipeline.assert_same("r7", "r8", while_running=capture)
    assert [row["region"] for row in rows_after(pipeline, "r1") if row["id"] == 9] == ["us", "asia"]
    assert table_topics(pipeline) == {pipeline.topic(name) for name in [*(f"r{n}" for n in range(10)), "other"]}


def test_every_row_of_a_partition_has_the_columns_it_was_written_with(make_pipeline: MakePipeline) -> None:
    """Each row has the columns of its write time, across DDL in a transaction, a crash before the confirmation and a
    rename.
    """
    pipeline = make_pipeline(source={"tables": ["public.*"]})
    database = pipeline.database
    make_root(pipeline, "r", "eu")
    make_root(pipeline, "solo", "eu")
    capture = pipeline.start()
    database.execute("INSERT INTO r VALUES (0, 'eu', 'zero')")
    pipeline.fence(while_running=capture)
    connection = database.connect(autocommit=False)
    for statement in (
        "INSERT INTO r VALUES (1, 'eu', 'one')",
        "ALTER TABLE r RENAME COLUMN v TO vv",
        "INSERT INTO r VALUES (2, 'eu', 'two')",
        "ALTER TABLE r ADD COLUMN n int",
        "CREATE TABLE r_us PARTITION OF r FOR VALUES IN ('us')",
        "INSERT INTO r VALUES (3, 'us', 'three', 3)",
        "ALTER TABLE r DROP COLUMN vv",
        "INSERT INTO r VALUES (4, 'eu', 4), (5, 'us', 5)",
    ):
        connection.execute(statement)
    capture.kill()
    connection.commit()
    # Of a partition that capture has not read yet, rows remain when all that are known are truncated.
    database.execute("CREATE TABLE solo_us PARTITION OF solo FOR VALUES IN ('us')")
    database.execute("INSERT INTO solo VALUES (1, 'us', 'stays')")
    database.execute("TRUNCATE solo_eu")
    capture = pipeline.start()
    wait_for_look(pipeline, capture)
    assert rows_after(pipeline, "r") == [
        {"id": 0, "region": "eu", "v": "zero"},
        {"id": 1, "region": "eu", "v": "one"},
        {"id": 2, "region": "eu", "vv": "two"},
        {"id": 3, "region": "us", "vv": "three", "n": 3},
        {"id": 4, "region": "eu", "n": 4},
        {"id": 5, "region": "us", "n": 5},
    ]
    assert markers(pipeline, "solo") == 0
    assert marks(pipeline) == {"solo": "a partition was truncated"}
    pipeline.assert_same("solo", while_running=capture)

    database.execute("ALTER TABLE r RENAME TO renamed")
    wait_for_markers(pipeline, "r")
    assert marks(pipeline) == {"solo": "a partition was truncated", "renamed": "it was renamed"}
    database.execute("INSERT INTO renamed VALUES (6, 'eu', 6), (7, 'us', 7)")
    pipeline.fence(while_running=capture)
    assert [row["id"] for row in rows_after(pipeline, "renamed")] == [6, 7]
    # A table of its own becomes a partition, and a partition becomes a table of its own.
    database.execute("CREATE TABLE alone (LIKE renamed INCLUDING ALL)")
    capture.wait_for_line('"public.alone".*"table_added"', 30)
    database.execute("INSERT INTO alone VALUES (8, 'asia', 8)")
    pipeline.assert_same("alone", while_running=capture)
    database.execute("ALTER TABLE renamed ATTACH PARTITION alone FOR VALUES IN ('asia')")
    wait_for_markers(pipeline, "alone")
    database.execute("INSERT INTO renamed VALUES (9, 'asia', 9)")
    database.execute("ALTER TABLE solo DETACH PARTITION solo_us")
    capture.wait_for_line('"public.solo_us".*"table_added"', 30)
    database.execute("INSERT INTO solo_us VALUES (10, 'us', 'alone now')")
    pipeline.fence(while_running=capture)
    assert [row["id"] for row in rows_after(pipeline, "renamed")] == [6, 7, 9]
    assert [row["id"] for row in rows_after(pipeline, "solo_us")] == [10]
    assert pipeline.topic("solo_us") in states(pipeline).pending
