"""A config change on a live pipeline is applied completely or refused with the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.lsn import Version
from tests.harness.kafka.records import Record
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.pipeline.table_states import marks, wait_for_look
from tests.harness.processes.command import run_command
from tests.harness.processes.process import Process
from tests.harness.processes.waiting import eventually
from tests.harness.snapshot.incremental_snapshot import copy_due
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _stop(capture: Process) -> None:
    capture.terminate()
    capture.expect_exit(0)


def _live(records: list[Record]) -> dict[bytes, Record]:
    """The last record of each key, without those that a TRUNCATE marker ends."""
    dead = max((record.version or Version(0, 0) for record in records if record.op == "t"), default=Version(0, 0))
    last = {record.key: record for record in records if record.op != "t"}
    return {key: each for key, each in last.items() if each.op in ("c", "u", "r") and (each.version or dead) >= dead}


def _people(pipeline: Pipeline) -> Process:
    pipeline.database.execute("CREATE TABLE people (id int PRIMARY KEY, email text)")
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO people SELECT n, 'a@b' FROM generate_series(1, 30) n")
    pipeline.fence(while_running=capture)
    wait_for_look(pipeline, capture)
    return capture


def test_masks_that_are_changed_hold_for_every_row(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """A changed mask makes the table incomplete, and after the snapshot every row has the new mask, keys included."""
    pipeline = make_pipeline()
    _stop(_people(pipeline))
    plain = pipeline.config.read_text()
    masks = '"public.people.email" = "hash"', '"public.people.id" = "hash"\n"public.people.email" = "none"'
    for number, mask in enumerate(masks):
        pipeline.config.write_text(f"{plain}[mask]\n{mask}\n")
        capture = pipeline.start()
        wait_for_look(pipeline, capture)
        assert list(marks(pipeline)) == ["people"]
        assert copy_due(pipeline, spark).is_complete
        pipeline.fence(while_running=capture)
        live = _live(pipeline.records("people"))
        assert len(live) == 30
        emails = {record.value["after"]["email"] for record in live.values()}
        assert (emails == {"a@b"}) is (number == 1)
        assert all((b'"id":"' in key) is (number == 1) for key in live)
        _stop(capture)
    capture = pipeline.start()  # unchanged: nothing is due
    wait_for_look(pipeline, capture)
    assert marks(pipeline) == {}


def test_a_table_that_is_no_longer_selected_and_a_renamed_publication(
    make_pipeline: MakePipeline, spark: SparkSession
) -> None:
    """A table that is no longer selected is still captured, with the way to remove it; a renamed publication is
    refused.
    """
    pipeline = make_pipeline(source={"tables": ["public.people", "public.other"]})
    pipeline.database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    _stop(_people(pipeline))
    pipeline.configure(source={"tables": ["public.people"]})
    capture = pipeline.start()
    capture.wait_for_line("table_not_selected.*|tailrace remove --table public.other")
    pipeline.database.execute("INSERT INTO other VALUES (1)")
    pipeline.assert_same("people", "other", while_running=capture)
    _stop(capture)
    renamed = {"tables": ["public.people", "public.other"], "publication": "renamed"}
    pipeline.configure(source=renamed)
    pipeline.launch().expect_exit(3)
    pipeline.database.execute("DELETE FROM people WHERE id = 3")
    assert "publication tailrace, which was used before" in run_command("recover", pipeline.config, "--yes").stdout
    capture = pipeline.start()
    assert copy_due(pipeline, spark).is_complete
    pipeline.assert_same("people", "other", while_running=capture)


def test_renamed_stores(
    make_pipeline: MakePipeline, spark: SparkSession, redis_url: str, elasticsearch_url: str
) -> None:
    """A renamed store is refused with both names, since its data belongs to the old name, under which it continues."""
    settings = {
        "cache": {"kind": "redis", "url": redis_url},
        "search": {"kind": "elasticsearch", "url": elasticsearch_url},
    }
    pipeline = make_pipeline()
    stores = StorePipeline(pipeline, spark, settings)
    _people(pipeline)
    with stores.syncing():
        stores.wait_until_served()
        stores.assert_same("people")
    stores.replace("[stores.cache]", "[stores.cash]")
    stores.replace("[stores.search]", "[stores.find]")
    stores.names = ["cash", "find"]
    pipeline.database.execute("DELETE FROM people WHERE id = 3")
    with stores.syncing() as syncs:
        for name, old in (("cash", "cache"), ("find", "search")):
            eventually(lambda name=name: syncs[name].refused, 60, f"the renamed {old} to be refused")  # type: ignore[misc]
            assert f"named `{old}`, not `{name}`" in str(syncs[name].refused)
    stores.replace("[stores.cash]", "[stores.cache]")
    stores.replace("[stores.find]", "[stores.search]")
    stores.names = ["cache", "search"]
    with stores.syncing():
        stores.assert_same("people")
