"""After random SQL from a seed, with capture killed and stopped meanwhile, the topics equal the tables.

The seed is printed; `TAILRACE_SEED=… pytest tests/acceptance/capture/test_random_changes.py` repeats the run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.stores.clean_audit import assert_clean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("plain", "composite", "seats", "whole", "parent", "child")

_SCHEMA = """
CREATE TABLE plain (id int PRIMARY KEY, n int, big text);
CREATE TABLE composite (a int, b text, n int, big text, PRIMARY KEY (b, a));
CREATE TABLE seats (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, n int, big text);
CREATE TABLE whole (id text PRIMARY KEY, n int, big text);
CREATE TABLE parent (id int PRIMARY KEY, n int);
CREATE TABLE child (
    id int PRIMARY KEY, n int, big text, parent int REFERENCES parent ON UPDATE CASCADE ON DELETE CASCADE
);
ALTER TABLE seats REPLICA IDENTITY FULL;
CREATE FUNCTION toasted(seed int) RETURNS text LANGUAGE sql STABLE AS
    $$ SELECT string_agg(md5(seed || ' ' || i), '') FROM generate_series(1, 100) i $$;
ALTER TABLE whole REPLICA IDENTITY FULL;
"""
# What makes a statement, and only it, worth nothing; the transaction goes on without it.
_HARMLESS = (psycopg.errors.IntegrityError,)


class Writer:
    """Writes random changes; the same seed gives the same changes."""

    def __init__(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        self._connection = connection
        self._chance = chance
        self._prepared = 0
        self._number = 0
        self._kinds: list[tuple[int, Callable[[], str]]] = [
            (6, self._insert),
            (6, self._update),
            (4, self._delete),
            (4, self._key_change),
            (3, self._new_toasted),
            (2, self._deferred_move),
            (1, self._bulk),
            (1, self._truncate),
        ]

    def transaction(self) -> None:
        """Run one transaction, which commits, rolls back or is prepared."""
        connection = self._connection
        connection.execute("BEGIN")
        for _ in range(self._chance.choice((1, 1, 2, 3, 8))):
            self._statement()
        end = self._chance.choice(("COMMIT",) * 8 + ("ROLLBACK", "PREPARE"))
        try:
            if end == "PREPARE":
                self._two_phases()
            else:
                connection.execute(end)
        except _HARMLESS:
            connection.execute("ROLLBACK")  # a deferred constraint; some of these end as a rollback

    def _statement(self) -> None:
        """Run a statement in a savepoint, which is sometimes rolled back."""
        connection = self._connection
        connection.execute("SAVEPOINT s")
        (kind,) = self._chance.choices([kind for _, kind in self._kinds], [weight for weight, _ in self._kinds])
        undone = self._chance.random() < 0.15
        try:
            connection.execute(kind())
        except (*_HARMLESS, psycopg.errors.ObjectInUse):  # TRUNCATE with deferred checks pending
            undone = True
        if undone:
            connection.execute("ROLLBACK TO s")

    def _two_phases(self) -> None:
        self._prepared += 1
        name = f"{os.getpid()}-{id(self)}-{self._prepared}"
        self._connection.execute(f"PREPARE TRANSACTION '{name}'")
        self._connection.execute(f"{self._chance.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{name}'")

    def _key(self) -> int:
        return self._chance.randrange(30)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _some(self) -> tuple[str, str]:
        """A table and a condition that selects one or a few of its rows."""
        table = self._chance.choice(TABLES)
        key = "a" if table == "composite" else "id"
        if self._chance.random() < 0.8:
            return table, f"{key} = '{self._key()}'"
        return table, f"n % 7 = {self._chance.randrange(7)}"

    def _insert(self) -> str:
        table = self._chance.choice(TABLES)
        big = f"toasted({self._next()})" if self._chance.random() < 0.5 else "'small'"
        key, n = self._key(), self._next()
        row = {
            "composite": f"({key}, '{self._chance.choice('xy')}', {n}, {big})",
            "parent": f"({key}, {n})",
            "child": f"({key}, {n}, {big}, (SELECT min(id) FROM parent))",
        }.get(table, f"('{key}', {n}, {big})")
        conflict = "" if table == "seats" else "ON CONFLICT DO NOTHING"
        return f"INSERT INTO {table} VALUES {row} {conflict}"

    def _update(self) -> str:
        table, where = self._some()
        return f"UPDATE {table} SET n = {self._next()} WHERE {where}"

    def _new_toasted(self) -> str:
        table, where = self._some()
        table = "plain" if table == "parent" else table
        value = self._chance.choice((f"toasted(n + {self._next()})", "NULL", "big || 'x'"))
        return f"UPDATE {table} SET big = {value} WHERE {where}"

    def _delete(self) -> str:
        table, where = self._some()
        return f"DELETE FROM {table} WHERE {where}"

    def _key_change(self) -> str:
        table, where = self._some()
        new = {
            "composite": f"a = {self._key()}, b = '{self._chance.choice('xyz')}'",
            "whole": f"id = '{self._key()}'",
        }.get(table, f"id = {self._key()}")
        return f"UPDATE {table} SET {new} WHERE {where}"

    def _deferred_move(self) -> str:
        return self._chance.choice(
            (
                "UPDATE seats SET id = id + 1",
                "UPDATE seats SET id = id - 1, n = n + 1 WHERE id > 3",
                f"UPDATE seats SET id = CASE id WHEN {self._key()} THEN 1 ELSE 2 END WHERE id < 3",
                "UPDATE seats SET id = (SELECT min(id) + max(id) FROM seats) - id",
            )
        )

    def _bulk(self) -> str:
        first, count = 1000 + self._chance.randrange(2000), self._chance.choice((20, 700, 1500))
        return self._chance.choice(
            (
                f"INSERT INTO plain SELECT i, {self._next()}, 'bulk' FROM generate_series({first}, {first + count}) i"
                " ON CONFLICT DO NOTHING",
                f"UPDATE plain SET n = n + 1 WHERE id >= {first}",
                f"DELETE FROM plain WHERE id >= {first}",
                f"INSERT INTO seats SELECT i, i, 'bulk' FROM generate_series({-first - count}, {-first}) i",
                "DELETE FROM seats WHERE id < 0",
            )
        )

    def _truncate(self) -> str:
        return self._chance.choice(
            (
                "TRUNCATE plain",
                "TRUNCATE parent CASCADE",
                "TRUNCATE composite, whole",
                "TRUNCATE seats",
                "DELETE FROM whole",
            )
        )


class Interruptions:
    """Ends capture by kill, SIGTERM or freeze and starts it again."""

    def __init__(self, pipeline: Pipeline, chance: random.Random) -> None:
        self._pipeline = pipeline
        self._chance = chance
        self.capture = pipeline.start()

    def strike(self) -> None:
        kind = self._chance.choice(("kill", "kill", "kill again at once", "kill at a split", "stop"))
        print(f"capture: {kind}")
        if kind == "stop":
            self.capture.wait_for_line('"streaming"', 60)
            self.capture.terminate()
            self.capture.expect_exit(0)
        else:
            self.capture.kill()
        self.capture = self._pipeline.launch()
        if kind == "kill again at once":
            self.capture.wait_for_line('"streaming"', 60)
            self.capture.kill()
            self.capture = self._pipeline.launch()
        if kind == "kill at a split":
            self._split_and_kill()

    def _split_and_kill(self) -> None:
        """Kill twice inside one large transaction: the second process skips what the first one published."""
        self._pipeline.database.execute(
            "UPDATE plain SET n = n + 1;"
            "INSERT INTO seats SELECT 9000 + i, 0 FROM generate_series(1, 3000) i; DELETE FROM seats WHERE id >= 9000"
        )
        for _ in range(2):
            self.capture.wait_for_line('"streaming"', 60)
            self.capture.wait_for(lambda: "transaction_split" in self.capture.errors or self._caught_up(), 60)
            self.capture.kill()
            self.capture = self._pipeline.launch()

    def _caught_up(self) -> bool:
        return self._pipeline.published_to() >= self._pipeline.database.lsn()


def _run(make_pipeline: MakePipeline, seed: int, *, transactions: int, strikes: int) -> Pipeline:
    print(f"TAILRACE_SEED={seed}")
    chance = random.Random(seed)
    pipeline = make_pipeline(
        kafka={"partitions": chance.choice((1, 3))},
        capture={"transaction_events": chance.choice((1, 300)), "batch_milliseconds": chance.choice((0, 50))},
    )
    pipeline.database.execute(_SCHEMA)
    interruptions = Interruptions(pipeline, chance)
    writer = Writer(pipeline.database.connect(), chance)
    strike_at = set(chance.sample(range(transactions), strikes))
    for number in range(transactions):
        writer.transaction()
        if number in strike_at:
            interruptions.strike()
    pipeline.assert_same(*TABLES, deadline_seconds=120, while_running=interruptions.capture)
    return pipeline


def _seed() -> int:
    return int(os.environ.get("TAILRACE_SEED") or random.SystemRandom().randrange(1 << 32))


def test_random_changes_and_kills_lose_and_double_nothing(make_pipeline: MakePipeline) -> None:
    """After random changes and kills, contents are equal, no event is published twice, and progress never falls."""
    _run(make_pipeline, _seed(), transactions=300, strikes=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_random_changes_and_kills_lose_and_double_nothing(
    make_pipeline: MakePipeline, spark: SparkSession
) -> None:
    """A longer run, after which an audit finds nothing either."""
    pipeline = _run(make_pipeline, _seed(), transactions=6000, strikes=60)
    assert_clean(pipeline.config, spark)
