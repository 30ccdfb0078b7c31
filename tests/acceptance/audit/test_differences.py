"""An audit finds every way in which a topic or a store can be wrong, and nothing else; a repair corrects just that.

All tests share one pipeline with running syncs. It has only two tables, since a continuous audit chooses among them at
random. The table `kinds` is spoilt and repaired once for several tests; in `others` each test has rows of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from elasticsearch import ConflictError

from cdc.audit.audit_log import read_audits
from cdc.audit.audit_records import AuditRecord
from cdc.audit.sampled_audit import ContinuousAudit
from cdc.lsn import Version
from spark_jobs.audit.run import AuditOptions, run_audit
from tests.harness.kafka.topics import delete_topics
from tests.harness.pipeline.pipeline import Pipeline
from tests.harness.postgres.database import Database
from tests.harness.processes.process import Process, tailrace_argv
from tests.harness.processes.waiting import eventually
from tests.harness.servers import cleanup
from tests.harness.stores.store_pipeline import StorePipeline
from tests.harness.stores.tampering import Tampering

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORES = ("search", "cache")
#: What `_spoil` does to the table `kinds`, by row id.
EXPECTED = {"1": "content", "2": "missing", "3": "version", "x": "extra", "900": "ghost"}
TABLES = ("kinds", "others")

Audit = Callable[..., list[AuditRecord]]


@pytest.fixture(scope="module")
def stores(
    postgres_url: str,
    kafka_bootstrap: str,
    elasticsearch_url: str,
    redis_url: str,
    run_spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[StorePipeline]:
    """A pipeline with an Elasticsearch and a Redis, both syncing, and the tests' tables."""
    prefix = f"t{uuid.uuid4().hex[:10]}"
    with ExitStack() as stack:
        for delete, address in (
            (delete_topics, kafka_bootstrap),
            (cleanup.delete_indices, elasticsearch_url),
            (cleanup.delete_keys, redis_url),
        ):
            stack.callback(delete, address, prefix)
        database = Database(postgres_url, "audit_differences")
        stack.callback(database.drop)

        def start(*args: str) -> Process:
            process = Process(tailrace_argv(*args))
            stack.callback(process.kill)
            return process

        pipeline = Pipeline(
            database=database,
            bootstrap=kafka_bootstrap,
            prefix=prefix,
            folder=tmp_path_factory.mktemp("audit"),
            start=start,
        )
        pipeline.configure()
        sections = {
            "search": {"kind": "elasticsearch", "url": elasticsearch_url},
            "cache": {"kind": "redis", "url": redis_url},
        }
        made = StorePipeline(pipeline, run_spark, sections)
        for table in TABLES:
            database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, v text)")
        pipeline.start()
        database.execute("INSERT INTO others SELECT i, i, 'row ' || i FROM generate_series(1, 100) i")
        database.execute("INSERT INTO kinds SELECT i, i, 'ghost' FROM generate_series(900, 905) i")
        stack.enter_context(made.syncing())
        made.assert_same(*TABLES)
        yield made


@pytest.fixture
def tamper(stores: StorePipeline, elasticsearch_url: str, redis_url: str) -> Iterator[Callable[[str], Tampering]]:
    """Writes to a table's topic and stores without Tailrace: `tamper("kinds")`."""
    with ExitStack() as stack:
        yield lambda table: stack.enter_context(closing(Tampering(stores, table, elasticsearch_url, redis_url)))


def _auditing(stores: StorePipeline, spark: SparkSession, table: str) -> Audit:
    """`tailrace audit` of one table, without the process around it; without stores, of its topic."""

    def run(*names: str, repair: bool = False) -> list[AuditRecord]:
        options = AuditOptions(stores=names, tables=[f"public.{table}"], repair=repair, timeout_seconds=60)
        return list(run_audit(stores.config, options, lambda: spark))

    return run


@dataclass(frozen=True, slots=True)
class History:
    """An audit of the spoilt table `kinds`, a repair and another audit, and the records that were kept of each."""

    found: list[AuditRecord]
    found_kept: dict[str, str]
    repaired: list[AuditRecord]
    again: list[AuditRecord]
    again_kept: dict[str, str]


@pytest.fixture(scope="module")
def history(stores: StorePipeline, run_spark: SparkSession, elasticsearch_url: str, redis_url: str) -> History:
    database, audit = stores.pipeline.database, _auditing(stores, run_spark, "kinds")
    with closing(Tampering(stores, "kinds", elasticsearch_url, redis_url)) as tampering:
        ghost = tampering.elasticsearch.get(index=tampering.index, id="900")
        row, version = tampering.redis.hmget(tampering.key(900), "row", "version")
        database.execute("TRUNCATE kinds; INSERT INTO kinds SELECT i, i, 'row ' || i FROM generate_series(1, 400) i")
        database.execute("DELETE FROM kinds WHERE id > 300; UPDATE kinds SET n = 0 WHERE id <= 50")
        stores.assert_same("kinds")
        _spoil_search(tampering, ghost)
        _spoil_cache(tampering, row, version)
    found, found_kept = audit(*STORES), _kept(stores, "kinds")
    repaired = audit(*STORES, repair=True)
    again = audit(*STORES)
    return History(found, found_kept, repaired, again, _kept(stores, "kinds"))


def _spoil_search(tampering: Tampering, ghost: Any) -> None:
    """A changed field, a missing row, a version above all others, a row too many, and a row that was deleted."""
    index, client = tampering.index, tampering.elasticsearch
    tampering.document(1, lambda source: source.update(n=-1))
    client.delete(index=index, id="2")
    tampering.document(3, lambda _: None, version=1 << 60)
    client.index(index=index, id="x", document={"_tailrace": {"position": 8, "seq": 1}, "id": "x"})
    client.indices.put_settings(index=index, settings={"index.gc_deletes": "0s"})
    client.delete(index=index, id="900")

    def restored() -> bool:
        """The server refuses the old version until a refresh has made it forget the delete."""
        client.indices.refresh(index=index)
        source, version = ghost["_source"], ghost["_version"]
        try:
            client.index(index=index, id="900", document=source, version=version, version_type="external_gte")
        except ConflictError:
            return False
        return True

    eventually(restored, 30, "a deleted document to come back")


def _spoil_cache(tampering: Tampering, row: Any, version: Any) -> None:
    """Make the same differences in Redis as `_spoil_search` makes in Elasticsearch."""
    tampering.row(1, n=-1)
    tampering.redis.delete(tampering.key(2))
    tampering.redis.hset(tampering.key(3), "version", str(Version((1 << 50), 1)))
    tampering.redis.hset(tampering.key("x"), mapping={"row": '{"id":"x"}', "version": str(Version(8, 1))})
    tampering.redis.hset(tampering.key(900), mapping={"row": row, "version": version})
    tampering.redis.persist(tampering.key(900))


def _kept(stores: StorePipeline, table: str) -> dict[str, str]:
    """The stored verdict of the last full audit, by store."""
    kept = [each for each in read_audits(stores.config) if each.table == f"public.{table}" and not each.sampled]
    return {each.store: each.verdict for each in kept}


def _differences(records: list[AuditRecord], store: str) -> dict[str, str]:
    """The kind of each difference, by row id."""
    return {each.id: each.kind for record in records if record.store == store for each in record.differences}


@pytest.mark.parametrize("store", STORES)
def test_every_kind_of_difference_is_found_and_no_other(history: History, spark: SparkSession, store: str) -> None:
    """An audit reports a changed field, a missing row, a wrong version, an extra row and a row that was deleted at the
    source.
    """
    assert _differences(history.found, store) == EXPECTED


@pytest.mark.parametrize("store", STORES)
def test_the_columns_that_differ_are_named(history: History, spark: SparkSession, store: str) -> None:
    """For a row whose content differs, the audit names exactly the columns that differ."""
    found = [each for record in history.found if record.store == store for each in record.differences]
    assert [each.fields for each in found if each.id == "1"] == [["n"]]


def test_a_repair_corrects_every_difference(history: History, spark: SparkSession) -> None:
    """A repair counts the rows that it corrected in each store and ends with the verdict equal."""
    assert [(each.store, each.verdict, each.repaired) for each in history.repaired] == [
        (store, "equal", len(EXPECTED)) for store in STORES
    ]


def test_after_a_repair_no_row_needs_a_second_comparison(history: History, spark: SparkSession) -> None:
    """The audit after a repair rechecks no row."""
    assert [(each.store, each.verdict, each.looked_again) for each in history.again] == [
        (store, "equal", 0) for store in STORES
    ]


def test_the_last_audit_of_each_store_is_kept(history: History, spark: SparkSession) -> None:
    """The dashboard's record of a store's last audit is drift after the first audit and equal after the last one."""
    assert history.found_kept == dict.fromkeys(STORES, "drift")
    assert history.again_kept == dict.fromkeys(STORES, "equal")


def test_repaired_rows_take_changes_again(history: History, stores: StorePipeline, spark: SparkSession) -> None:
    """Repaired rows accept later changes, including rows that had too high a version and rows that had been deleted."""
    stores.pipeline.database.execute(
        "UPDATE kinds SET v = 'later' WHERE id IN (1, 2, 3); INSERT INTO kinds VALUES (900, 1, 'new')"
    )
    stores.assert_same("kinds")
    assert '"later"' in stores.rows("search", "kinds")["3"]


def test_a_forged_record_in_the_topic_is_found(
    stores: StorePipeline, spark: SparkSession, tamper: Callable[[str], Tampering]
) -> None:
    """An audit of the topic finds a forged record without any store; a repair publishes the row again, and every store
    gets it.
    """
    audit = _auditing(stores, spark, "others")
    tamper("others").produce({"id": 10}, lambda after: after.update(v="a lie"))
    assert _differences(audit(), "topic") == {"10": "content"}
    assert {each.verdict for each in audit(*STORES, repair=True)} == {"equal"}
    assert [each.verdict for each in audit()] == ["equal"]
    stores.assert_same("others")


def test_a_repair_wins_against_a_delete_that_elasticsearch_remembers(
    stores: StorePipeline, spark: SparkSession, tamper: Callable[[str], Tampering]
) -> None:
    """The server keeps the version of a deleted document for a minute, and refuses a smaller one until then."""
    audit, tampering = _auditing(stores, spark, "others"), tamper("others")
    tampering.elasticsearch.delete(index=tampering.index, id="20")
    assert [(each.verdict, each.repaired) for each in audit("search", repair=True)] == [("equal", 1)]
    stores.assert_same("others")


def test_a_continuous_audit_finds_what_differs_until_it_is_repaired(
    stores: StorePipeline, spark: SparkSession, tamper: Callable[[str], Tampering]
) -> None:
    """A continuous audit reports a changed row and an extra row in the store that has them, and not in the other
    store.
    """
    samples, tampering = ContinuousAudit(stores.config, rows_per_second=300), tamper("others")
    tampering.row(5, n=-5)
    tampering.redis.hset(tampering.key("77777"), mapping={"row": '{"id":77777}', "version": str(Version(8, 1))})
    eventually(lambda: _sampled(samples, stores, "cache") == {"5", "77777"}, 120, "a sample to find them")
    assert _sampled(samples, stores, "search") == set()
    audit = _auditing(stores, spark, "others")
    assert [each.repaired for each in audit("cache", repair=True)] == [2]
    eventually(lambda: _sampled(samples, stores, "cache") == set(), 60, "a sample that finds no difference")


def _sampled(samples: ContinuousAudit, stores: StorePipeline, store: str) -> set[str] | None:
    """The verdict of the continuous audit after one more pass over the table; None before its first sample."""
    samples.turn()
    sampled = [
        record
        for record in read_audits(stores.config)
        if record.sampled and record.store == store and record.table == "public.others"
    ]
    return {each.id for record in sampled for each in record.differences} if sampled else None
