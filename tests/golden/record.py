"""Records what a real Debezium makes of script.sql and of the examples in docs/reference/types.md (`make golden`).

Writes events.json and types.json beside this file; both are committed, so that the comparing tests need no Debezium.
Uses a stack of its own that is thrown away, unless it is given a Postgres and a Kafka without topics of that prefix.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import psycopg
from kafka import KafkaConsumer, TopicPartition
from psycopg import sql
from psycopg.conninfo import make_conninfo

from deploy.stack import open_stack
from tests.bench.debezium import Debezium, connector_settings, install
from tests.golden.documented import Example, read_examples, read_setup
from tests.golden.script import GOLDEN, read_script, run_setup, run_steps

PREFIX = "golden"
COLUMNS_PER_TABLE = 30
_JAVA_IDENTITY = re.compile(r"@[0-9a-f]+(?=\")")  # [Ljava.lang.String;@61929de6: another one at each run

Record = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", help="DSN of a server with wal_level=logical")
    parser.add_argument("--kafka", help="bootstrap address")
    given = parser.parse_args()
    if given.postgres and given.kafka:
        record(given.postgres, given.kafka)
        return
    with TemporaryDirectory() as folder:
        stack = open_stack(Path(folder))
        try:
            stack.up(("postgres", "kafka"))
            record(stack.server("postgres").address, stack.server("kafka").address)
        finally:
            stack.down(wipe=True)


def record(server_dsn: str, bootstrap: str) -> None:
    script, examples = read_script(), read_examples()
    with fresh_database(server_dsn) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        run_setup(connection, script)
        events = capture(dsn, bootstrap, lambda: run_steps(connection, script), prefix=PREFIX)
    _write(GOLDEN / "events.json", events)
    with fresh_database(server_dsn) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(read_setup().encode())
        create_example_tables(connection, examples)
        events = capture(dsn, bootstrap, lambda: insert_examples(connection, examples), prefix=f"{PREFIX}_types")
    _write(GOLDEN / "types.json", values_of_examples(events, examples))


@contextmanager
def fresh_database(server_dsn: str) -> Iterator[str]:
    name = f"golden_{uuid4().hex[:8]}"
    with psycopg.connect(server_dsn, autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield make_conninfo(server_dsn, dbname=name)
        finally:
            server.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [name]
            )
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def capture(dsn: str, bootstrap: str, write: Callable[[], None], *, prefix: str) -> dict[str, list[Record]]:
    """Everything that Debezium publishes of what `write` does; its topics start with `prefix`."""
    slot = f"golden_{uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as connection, TemporaryDirectory() as folder:
        connection.execute("CREATE TABLE public.end_of_recording (id integer PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION golden FOR ALL TABLES")
        settings = connector_settings(dsn, prefix=prefix, slot=slot, publication="golden")
        settings["topic.creation.default.replication.factor"] = "1"
        settings["topic.creation.default.partitions"] = "1"
        with Debezium(install(), Path(folder), dsn=dsn, bootstrap=bootstrap, connector=settings) as debezium:
            debezium.wait_until_streaming()
            write()
            connection.execute("INSERT INTO public.end_of_recording VALUES (1)")
            wait_for_topic(bootstrap, f"{prefix}.public.end_of_recording", debezium)
        return read_topics(bootstrap, prefix)


def wait_for_topic(bootstrap: str, topic: str, debezium: Debezium, timeout_seconds: float = 180) -> None:
    deadline = time.monotonic() + timeout_seconds
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        while topic not in consumer.topics():
            failure = debezium.failure()
            if failure or time.monotonic() > deadline:
                raise RuntimeError(f"Debezium did not reach the end of the recording: {failure}")
            time.sleep(0.5)
    finally:
        consumer.close()


def read_topics(bootstrap: str, prefix: str) -> dict[str, list[Record]]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    try:
        topics = [topic for topic in sorted(consumer.topics()) if topic.startswith(f"{prefix}.")]
        return {
            topic: read_topic(consumer, TopicPartition(topic, 0))
            for topic in topics
            if not topic.endswith(".end_of_recording")
        }
    finally:
        consumer.close()


def read_topic(consumer: Any, partition: Any) -> list[Record]:
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    end = consumer.end_offsets([partition])[partition]
    records: list[Record] = []
    while len(records) < end:
        for batch in consumer.poll(timeout_ms=1000).values():
            records.extend(_record(message) for message in batch)
    return records


def _record(message: Any) -> Record:
    headers = [[name, value.decode() if value is not None else None] for name, value in message.headers]
    return {"key": _parsed(message.key), "value": _parsed(message.value), "headers": headers}


def _parsed(data: bytes | None) -> Any:
    return None if data is None else json.loads(data)


def create_example_tables(connection: psycopg.Connection[Any], examples: list[Example]) -> None:
    """Few wide tables rather than many: making a topic is what takes time."""
    for start in range(0, len(examples), COLUMNS_PER_TABLE):
        part = examples[start : start + COLUMNS_PER_TABLE]
        columns = "".join(f", e{start + i} {example.type}" for i, example in enumerate(part))
        connection.execute(f"CREATE TABLE public.examples_{start} (id integer PRIMARY KEY{columns})".encode())


def insert_examples(connection: psycopg.Connection[Any], examples: list[Example]) -> None:
    for start in range(0, len(examples), COLUMNS_PER_TABLE):
        part = examples[start : start + COLUMNS_PER_TABLE]
        values = ", ".join(example.sql for example in part)
        connection.execute(f"INSERT INTO public.examples_{start} VALUES (1, {values})".encode())


def values_of_examples(events: dict[str, list[Record]], examples: list[Example]) -> list[Record]:
    row = {
        column: _JAVA_IDENTITY.sub("@…", json.dumps(value, ensure_ascii=False))
        for topic, records in events.items()
        if ".examples_" in topic
        for column, value in records[0]["value"]["after"].items()
    }
    return [
        {"type": example.type, "sql": example.sql, **({"json": json.loads(row[f"e{i}"])} if f"e{i}" in row else {})}
        for i, example in enumerate(examples)
    ]


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
