"""The harness on real servers: per-test databases and prefixes that are removed, and the comparer end to end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import psutil
import psycopg
import redis
from confluent_kafka import Producer

from cdc import names
from cdc.demo import shop
from cdc.demo.writer import ShopWriter
from cdc.lsn import Version
from tests.harness.comparison.comparer import Reader, assert_same, differences, source_reader, topic_reader
from tests.harness.kafka.records import read_topic
from tests.harness.kafka.topics import create_topic, delete_topics, list_topics
from tests.harness.network.proxy import Proxy
from tests.harness.postgres.database import Database
from tests.harness.processes.waiting import eventually
from tests.harness.servers import cleanup

_TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN cents AS numeric(10, 2);
CREATE TABLE "Odd.Name" (
    b text, a integer, m mood, c cents, n numeric, f real, d double precision, t timestamptz, i interval, day date,
    j json, jb jsonb, raw bytea, texts text[], boxes box[], pad char(5), r int4range, days date[], PRIMARY KEY (a, b)
);
INSERT INTO "Odd.Name" VALUES
    ('x', 1, 'ok', 1, 'NaN', 1.1, 'Infinity', '0044-03-15 12:00 BC', '1 year -3 days 04:05:06.7', '-infinity',
     '{"b": 1, "a": 2}', '{"b": 1, "a": 2}', '\\x00ff', '{a,"b c",NULL}', '{(3,4),(1,2);(0,0),(1,1)}', 'ab', '[1,5)',
     '{2024-02-29,infinity}'),
    ('y', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
"""


def test_a_database_is_fresh_and_goes_with_its_slots(postgres_url: str) -> None:
    """Each test has its own database, which is dropped with its slots, also one that is being read."""
    database = Database(postgres_url, "Own [database]!")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"slot_{database.name}"])
    reader = psycopg.connect(database.dsn, autocommit=True)
    database.drop()
    with psycopg.connect(postgres_url) as admin:
        left = admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database.name,)).fetchall()
        slots = admin.execute("SELECT 1 FROM pg_replication_slots WHERE database = %s", (database.name,)).fetchall()
    reader.close()
    assert (left, slots) == ([], [])


def test_the_source_is_read_with_its_types(database: Database) -> None:
    """Odd names, composite keys in key order, domains, arrays, padding: a table equals itself, and nothing else."""
    database.execute(_TYPES)
    (table,) = database.describe('"Odd.Name"')
    assert table.key == ("a", "b")
    rows = source_reader(database.dsn)(table)
    assert set(rows) == {(1, "x"), (1, "y")}
    row = rows[(1, "x")]
    assert (row["c"], row["pad"], row["raw"]) == ("1.00", "ab   ", b"\x00\xff")
    assert row["boxes"] == ("", ("(3,4),(1,2)", "(1,1),(0,0)"))
    assert row["days"] == ("", (19_782, "infinity"))
    assert row["jb"] != row["j"]
    assert_same([table], source_reader(database.dsn), source_reader(database.dsn), deadline_seconds=0)


def _write_topic(bootstrap: str, topic: str, records: list[tuple[bytes, bytes | None, Version]]) -> None:
    create_topic(bootstrap, topic, 2, cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for key, value, version in records:
        producer.produce(topic, value, key, headers={"v": str(version).encode()})
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"never committed", b"{}")
    producer.flush(30)
    producer.abort_transaction(30)


def _event(op: str, after: dict[str, object] | None) -> bytes:
    return orjson.dumps({"op": op, "after": after})


def test_the_topic_is_compared_with_the_source(database: Database, kafka_bootstrap: str, prefix: str) -> None:
    """All partitions are read, uncommitted records are not, and the one row that differs is named."""
    database.execute("CREATE TABLE x (id integer PRIMARY KEY, price numeric)")
    database.execute("INSERT INTO x SELECT n, n / 4.0 FROM generate_series(1, 20) AS n")
    (table,) = database.describe("x")
    prices = dict(database.execute("SELECT id, price::text FROM x"))
    records: list[tuple[bytes, bytes | None, Version]] = [
        (orjson.dumps({"id": n}), _event("c", {"id": n, "price": price}), Version(8, n)) for n, price in prices.items()
    ]
    gone = orjson.dumps({"id": 21})
    records += [
        (gone, _event("c", {"id": 21, "price": "1"}), Version(8, 21)),
        (gone, _event("d", None), Version(16, 1)),
        (gone, None, Version(16, 1)),
    ]
    topic = names.topic(prefix, "public", "x")
    _write_topic(kafka_bootstrap, topic, records)
    readers: tuple[Reader, Reader] = (source_reader(database.dsn), topic_reader(kafka_bootstrap, prefix))
    assert len(read_topic(kafka_bootstrap, topic)) == len(records)
    assert_same([table], *readers)
    database.execute("UPDATE x SET price = 5.0 WHERE id = 20")
    assert [str(found) for found in differences([table], *readers)] == [
        "public.x (20,) price: '5.0' became '5.0000000000000000'"
    ]


def test_everything_under_a_prefix_is_removed(
    kafka_bootstrap: str, elasticsearch_url: str, redis_url: str, prefix: str
) -> None:
    """Topics, indices and keys under a test's prefix are removed afterwards, and no others."""
    topic, kept = f"{prefix}.public.x", f"{prefix}2.public.x"
    create_topic(kafka_bootstrap, topic)
    create_topic(kafka_bootstrap, kept)
    index = f"{elasticsearch_url}/{prefix}.public.x"
    assert cleanup.request("PUT", index)[0] == 200
    with redis.Redis.from_url(redis_url) as client:
        client.hset(f"{prefix}:public.x:1", "row", "{}")
        delete_topics(kafka_bootstrap, prefix)
        cleanup.delete_indices(elasticsearch_url, prefix)
        cleanup.delete_keys(redis_url, prefix)
        assert client.keys(f"{prefix}*") == []
    eventually(lambda: topic not in list_topics(kafka_bootstrap), what="the topic to go")
    assert kept in list_topics(kafka_bootstrap)
    delete_topics(kafka_bootstrap, f"{prefix}2")
    assert cleanup.request("GET", index)[0] == 404


def test_the_writer_is_deterministic(postgres_url: str) -> None:
    """One seed, one content: two shops written by it are equal in every row, and another seed's is not."""
    shops = [Database(postgres_url, f"shop{number}") for number in range(3)]
    try:
        for fresh, seed in zip(shops, (7, 7, 8), strict=True):
            shop.create(fresh.connect())
            writer = ShopWriter(fresh.dsn, seed=seed)
            writer.write(150)
            writer.close()
        tables = shops[0].describe(*shop.TABLES)
        first, second, other = (source_reader(fresh.dsn) for fresh in shops)
        assert_same(tables, first, second, deadline_seconds=0)
        assert differences(tables, first, other)
    finally:
        for fresh in shops:
            fresh.drop()


def test_the_writer_does_all_kinds_of_work(database: Database) -> None:
    """Inserts, updates and deletes in every table, some values out of line; the counts are the server's own."""
    shop.create(database.connect())
    shop.create(database.connect())
    writer = ShopWriter(database.dsn, seed=3)
    writer.write(400)
    counts = writer.counts
    writer.close()
    for table in ("customers", "products", "orders", "order_items"):
        stats = database.execute(
            "SELECT n_tup_ins > 0, n_tup_upd > 0, n_tup_del > 0 FROM pg_stat_user_tables WHERE relname = %s", [table]
        )
        assert stats == [(True, True, True)], table
    toasted = "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 'public.products'::regclass"
    assert database.execute(toasted)[0][0] > 0
    rows = sum(database.execute(f"SELECT count(*) FROM {table}")[0][0] for table in shop.TABLES)
    assert rows == counts.inserted - counts.deleted
    assert counts.transactions + counts.rolled_back == 400


def test_the_writer_goes_on_after_its_connection_broke(
    database: Database, start_proxy: Callable[[str, int], Proxy]
) -> None:
    """The writer waits for a server that was away and writes again."""
    shop.create(database.connect())
    info = psycopg.conninfo.conninfo_to_dict(database.dsn)
    proxy = start_proxy(str(info["host"]), int(info["port"] or 0))
    writer = ShopWriter(psycopg.conninfo.make_conninfo(database.dsn, host=proxy.host, port=proxy.port), rate=0)
    writer.start()
    eventually(lambda: writer.counts.transactions > 5, what="the first transactions")
    proxy.cut()
    eventually(lambda: writer.counts.reconnects > 1, what="attempts to connect again")
    proxy.restore()
    before = writer.counts.transactions
    eventually(lambda: writer.counts.transactions > before + 5, what="transactions after the cut")
    writer.stop()


def test_a_killed_run_leaves_no_servers() -> None:
    """After `kill -9` of a test run its servers stop and their folder is removed."""
    script = (
        "import os; from tests.harness.servers.shared_servers import Servers; s = Servers({});"
        "print(s.stack.folder, s.server('redis').pid, flush=True); os.kill(os.getpid(), 9)"
    )
    root = Path(__file__).parents[3]
    run = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    folder, pid = run.stdout.split()
    eventually(lambda: not Path(folder).exists(), what=f"{folder} to go")
    # Where nobody reaps orphans, a dead one keeps its entry.
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
