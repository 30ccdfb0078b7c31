"""Stores with a shape: rows enter, change and leave as the expressions say."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from cdc.errors import ConfigError
from spark_jobs.sync.retry import retry
from spark_jobs.tasks.parked_rows import read_parked
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.processes.waiting import eventually
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ORDERS = {
    "columns": ["status", "total"],
    "where": "status <> 'draft' AND total > 0",
    "select": {"cents": "cast(total * 100 as bigint)", "share": "cast(100 / (total - 13) as decimal(10, 2))"},
}


@pytest.fixture
def stores(make_pipeline: MakePipeline, spark: SparkSession, elasticsearch_url: str, redis_url: str) -> StorePipeline:
    pipeline = make_pipeline()
    pipeline.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric(10, 2), secret text);"
        "CREATE TABLE items (id int PRIMARY KEY, n float8)"
    )
    return StorePipeline(
        pipeline,
        spark,
        {
            "search": {
                "kind": "elasticsearch",
                "url": elasticsearch_url,
                "tables": ["public.orders"],
                "shape": {"public.orders": _ORDERS},
            },
            "cache": {"kind": "redis", "url": redis_url, "shape": {"public.orders": _ORDERS}},
        },
    )


def _order(number: int, status: str, total: str, cents: int, share: str) -> str:
    return f'{{"id":{number},"status":"{status}","total":"{total}","cents":{cents},"share":"{share}"}}'


def test_rows_enter_and_leave(stores: StorePipeline, elasticsearch_url: str, prefix: str, spark: SparkSession) -> None:
    """Rows enter and leave a store by insert, update, key change and delete, and a bootstrap builds the same rows.

    A row whose expression fails is parked until it is corrected. `wait` ignores tables that the store does not get.
    """
    database = stores.pipeline.database
    stores.pipeline.start()
    with stores.syncing() as syncs:
        database.execute(
            "INSERT INTO orders VALUES (1, 'open', 10, 'hidden'), (2, 'draft', 5, 'hidden'), (3, 'open', 0, 'hidden'),"
            " (4, NULL, 7, 'hidden'), (5, 'open', 14, 'hidden'), (6, 'open', 15, 'hidden'), (7, 'open', 16, 'hidden')"
        )
        database.execute("INSERT INTO items SELECT i, i FROM generate_series(1, 20) i")
        stores.wait(deadline_seconds=120)
        database.execute(
            "UPDATE orders SET status = 'open' WHERE id = 2; UPDATE orders SET status = 'draft' WHERE id = 1;"
            "UPDATE orders SET id = 70 WHERE id = 7; DELETE FROM orders WHERE id = 6; DELETE FROM orders WHERE id = 3;"
            "UPDATE orders SET total = 13 WHERE id = 5; INSERT INTO orders VALUES (8, 'open', 13, 'hidden')"
        )
        stores.wait()
        kept = {"2": _order(2, "open", "5.00", 500, "-12.50"), "70": _order(70, "open", "16.00", 1600, "33.33")}
        # The row that fails is as it was, or is not there yet.
        before = {**kept, "5": _order(5, "open", "14.00", 1400, "100.00")}
        assert {name: stores.rows(name, "orders") for name in stores.names} == {"search": before, "cache": before}
        parked = {(row.store, row.key): row.reason for row in read_parked(stores.config)}
        assert parked.keys() == {(name, f'{{"id":{number}}}') for name in stores.names for number in (5, 8)}
        assert all(reason.startswith("share: the expression fails") for reason in parked.values())

        database.execute("UPDATE orders SET total = 3 WHERE id = 8; UPDATE orders SET status = 'draft' WHERE id = 5")
        stores.wait()
        for name in stores.names:
            results = retry(stores.config, name, [row for row in read_parked(stores.config) if row.store == name])
            assert [result.settled for result in results] == [True, True]
        assert not any(sync.refused for sync in syncs.values())
    after = {**kept, "8": _order(8, "open", "3.00", 300, "-10.00")}
    assert {name: stores.rows(name, "orders") for name in stores.names} == {"search": after, "cache": after}
    stores.compare("items", stores=["cache"])

    found = _get(f"{elasticsearch_url}/{prefix}.public.orders*/_mapping")
    (fields,) = [index["mappings"]["properties"] for index in found.values()]
    assert fields["cents"]["type"] == "long"
    assert fields["share"]["type"] == "double"
    assert "secret" not in fields
    assert "hidden" not in json.dumps(_get(f"{elasticsearch_url}/{prefix}.*/_search?size=100"))
    assert not [index for index in _get(f"{elasticsearch_url}/{prefix}.*/_mapping") if "items" in index]

    for name in stores.names:
        report = stores.bootstrap(name)
        assert report.verdict.complete, str(report.verdict)
    assert {name: stores.rows(name, "orders") for name in stores.names} == {"search": after, "cache": after}


def test_a_changed_shape_waits_for_a_bootstrap(stores: StorePipeline) -> None:
    """The sync keeps the old shape until a bootstrap has built the new one, and then follows it.

    The sync loads an added table itself; a removed table is synced until a bootstrap leaves it out.
    """
    database = stores.pipeline.database
    stores.pipeline.start()
    with stores.syncing():
        database.execute("INSERT INTO orders VALUES (1, 'open', 10), (2, 'draft', 5); INSERT INTO items VALUES (1, 1)")
        stores.wait(deadline_seconds=120)
    text = stores.pipeline.config.read_text()
    text = text.replace("status <> 'draft' AND total > 0", "total > 4").replace('"columns" = ["status", "total"], ', "")
    text = text.replace('tables = ["public.orders"]', 'tables = ["public.orders", "public.items"]')
    stores.pipeline.config.write_text(text.replace('"cents" = "cast(total * 100 as bigint)", ', '"secret" = "1", '))
    with stores.syncing() as syncs:
        database.execute("INSERT INTO orders VALUES (3, 'open', 20), (4, 'draft', 21)")
        stores.wait()
        old = {"1": _order(1, "open", "10.00", 1000, "-33.33"), "3": _order(3, "open", "20.00", 2000, "14.29")}
        assert {name: stores.rows(name, "orders") for name in stores.names} == {"search": old, "cache": old}
        stores.compare("items")
        for name in stores.names:
            report = stores.bootstrap(name)
            assert report.verdict.complete, str(report.verdict)
        database.execute("UPDATE orders SET status = 'new' WHERE id = 4; DELETE FROM orders WHERE id = 3")
        stores.wait()

        def follows() -> bool:
            return all(_is_new(stores.rows(name, "orders")) for name in stores.names)

        eventually(follows, 30, "the new shape in both stores")
        assert not any(sync.refused for sync in syncs.values())

    stores.replace('tables = ["public.orders", "public.items"]', 'tables = ["public.orders"]')
    stores.replace("[stores.cache]\n", '[stores.cache]\ntables = ["public.orders"]\n')
    with stores.syncing():
        database.execute("INSERT INTO items VALUES (2, 2)")
        stores.wait()
        stores.compare("items")
    for name in stores.names:
        stores.bootstrap(name)
    assert stores.rows("cache", "items") == {}
    with stores.opened("search") as (store, generation):
        position = store.position(generation)
    assert position is not None
    assert list(position.topics) == [stores.pipeline.topic("public.orders")]


def _is_new(rows: dict[str, str]) -> bool:
    return rows == {
        "1": '{"id":1,"status":"open","total":"10.00","secret":1,"share":"-33.33"}',
        "2": '{"id":2,"status":"draft","total":"5.00","secret":1,"share":"-12.50"}',
        "4": '{"id":4,"status":"new","total":"21.00","secret":1,"share":"12.50"}',
    }


@pytest.mark.slow
def test_mistakes_are_found_before_anything_runs(stores: StorePipeline, redis_url: str, prefix: str) -> None:
    """`check` fails and `sync` and `bootstrap` exit with code 2, with the line, the store, the table and the
    character.
    """
    pipeline = stores.pipeline
    pipeline.start()
    pipeline.database.execute("INSERT INTO orders VALUES (1, 'open', 1)")  # a table is described with its first row
    pipeline.fence()
    stores.pipeline.config.write_text(
        stores.pipeline.config.read_text()
        + f'[stores.other]\nkind = "redis"\nurl = "{redis_url}"\nprefix = "{prefix}x"\n'
        + '[stores.other.shape."public.orders"]\nwhere = "total > nothing"\n'
        + '[stores.other.shape."public.orders".select]\nlate = "current_date()"\n'
    )
    lines = len(stores.pipeline.config.read_text().splitlines())
    places = (
        f'line {lines - 2}, [stores.other.shape."public.orders"] where',
        f'line {lines}, [stores.other.shape."public.orders".select] late',
    )
    check = pipeline.run("check")
    check.expect_exit(1, 120)
    for place in places:
        assert f"store other: {place}: " in check.output
    assert "`nothing` cannot be resolved" in check.output
    assert "(at character 9)" in check.output
    assert "store search: The expressions in its shape are valid" in check.output

    sync = pipeline.run("sync", "other")
    sync.expect_exit(2, 120)
    assert all(place in sync.errors + sync.output for place in places)
    with pytest.raises(ConfigError) as raised:
        stores.bootstrap("other")
    assert [problem[0] for problem in raised.value.problems] == list(places)


def _get(url: str) -> Any:
    with urllib.request.urlopen(url) as response:  # noqa: S310 - the test's own server
        return json.loads(response.read())
