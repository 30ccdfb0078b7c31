"""An upgrade reads the state that an earlier Tailrace recorded, and refuses the state of a newer one.

`tests/recorded` holds the state of a real pipeline, byte by byte: control topics, Elasticsearch's indices, Redis keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import Producer
from elasticsearch import Elasticsearch

from cdc.config import Config, parse_config
from cdc.errors import RefusedError
from cdc.kafka.control_topics import read_last
from cdc.kafka.topics import Topics
from cdc.lsn import Version
from cdc.names import Control, control_topic
from cdc.positions.progress import FORMAT, read_progress
from cdc.snapshot.incremental.overview import snapshots_overview
from cdc.snapshot.log import SnapshotLog
from cdc.snapshot.requests import read_requests
from cdc.snapshot.table_status import read_status
from cdc.stores.contract import Store, TableSchema
from cdc.stores.registry import open_store
from cdc.tables.recorded_state import FORMAT as STATES_FORMAT
from cdc.tables.state_reader import read_recorded_states
from spark_jobs.tasks.parked_rows import read_parked
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.pipeline.table_states import wait_for_look

_FOLDER = Path(__file__).parents[2] / "recorded" / "release-0.1"


def _recorded(name: str, prefix: str) -> Any:
    """The recorded state as if it had been written under this prefix."""
    text = (_FOLDER / f"{name}.json").read_text()
    return json.loads(text.replace(json.loads(text)["prefix"], prefix))["content"]


def _config(prefix: str, bootstrap: str = "localhost:1", stores: str = "") -> Config:
    text = f'[source]\ndsn = "postgresql://h/d"\n[kafka]\nbootstrap = "{bootstrap}"\nprefix = "{prefix}"\n{stores}'
    return parse_config(text, file=Path("tailrace.toml"), environment={})


def _produce(bootstrap: str, topic: str, *records: dict[str, Any]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for record in records:
        headers: list[tuple[str, str | bytes | None]] = [(name, each) for name, each in record["headers"].items()]
        producer.produce(topic, record["value"], record["key"], headers=headers)
    assert producer.flush(30) == 0


@pytest.fixture
def restored(prefix: str, kafka_bootstrap: str) -> Config:
    """The control topics of the recorded pipeline, as today's capture would find them."""
    config = _config(prefix, kafka_bootstrap)
    topics = Topics(config.kafka)
    topics.ensure_control()
    topics.close()
    for name, records in _recorded("kafka", prefix).items():
        _produce(kafka_bootstrap, name, *records)
    return config


def _progress(config: Config) -> object:
    return read_progress(config.kafka.client_options(), control_topic(config.kafka.prefix, Control.PROGRESS))


def _copies(config: Config) -> SnapshotLog:
    with SnapshotLog(config.kafka) as log:
        return log.refresh()


def test_the_control_topics_are_read_as_they_were_meant(restored: Config) -> None:
    """Progress, tables, snapshots, schemas and parked rows are read; a field added since has its neutral value."""
    name = control_topic(restored.kafka.prefix, Control.PROGRESS)
    progress = read_progress(restored.kafka.client_options(), name)
    assert progress is not None
    assert (progress.format, progress.state, progress.slot, progress.base_from) == (FORMAT, "streaming", "", 0)
    assert progress.version > Version(0, 0)
    states = read_recorded_states(restored)
    assert states is not None
    assert states.format == STATES_FORMAT
    assert {state.table for state in states.tables.values()} == {"customers", "orders"}
    assert [mark.reason for mark in states.pending.values()] == ["column since was added with a default"]
    status = read_status(restored)
    assert status is not None
    assert [table["complete"] for table in status["tables"]] == [False, True]
    assert {copy.kind for copy in _copies(restored).copies.values()} == {"first", "later"}
    assert snapshots_overview(restored) is not None
    assert [parked.key for parked in read_parked(restored)] == ['{"id":6}']
    assert not read_requests(restored.kafka).paused


@pytest.mark.parametrize(
    ("topic", "read"),
    [
        pytest.param(Control.PROGRESS, _progress, id="progress"),
        pytest.param(Control.SCHEMA, read_recorded_states, id="tables"),
        pytest.param(Control.COPIES, _copies, id="copies"),
        pytest.param(Control.PARKED, read_parked, id="parked"),
        pytest.param(Control.REQUESTS, lambda config: read_requests(config.kafka), id="requests"),
    ],
)
def test_a_newer_record_is_refused(
    restored: Config, kafka_bootstrap: str, topic: Control, read: Callable[[Config], object]
) -> None:
    """A record of a newer format is refused with the format as the reason and the newer Tailrace as the remedy."""
    name = control_topic(restored.kafka.prefix, topic)
    keys = {Control.REQUESTS: '{"requests":"copies"}', Control.SCHEMA: '{"state":"tables"}'}
    records = _recorded("kafka", restored.kafka.prefix).get(name, [])
    last = {"headers": {}, "key": keys.get(topic) or records[-1]["key"], "value": '{"format":99,"tables":7}'}
    _produce(kafka_bootstrap, name, last)
    with pytest.raises(RefusedError, match="format") as refusal:
        read(restored)
    assert "newer Tailrace" in str(refusal.value.remedy)


def test_a_newer_schema_is_refused(prefix: str) -> None:
    """The stores refuse a table's schema record of a newer format."""
    records = _recorded("kafka", prefix)[control_topic(prefix, Control.SCHEMA)]
    tables = [TableSchema.from_record(each["value"]) for each in records if "version" in json.loads(each["key"])]
    assert {table.table for table in tables} == {"customers", "orders"}
    with pytest.raises(RefusedError, match="format 99"):
        TableSchema.from_record(b'{"format":99}')


@contextmanager
def _store(name: str, config: Config) -> Iterator[Store]:
    with closing(open_store(name, config.stores[name], config.kafka.prefix)) as store:
        yield store


def _assert_served(store: Store) -> None:
    """The store has the recorded position, generation and rows."""
    serving = store.serving()
    assert serving is not None
    position = store.position(serving)
    assert position is not None
    assert (len(position.topics), position.lsn > 0) == (2, True)
    taken = store.take(serving, "upgraded")
    assert store.save_position(serving, taken).version == position.version


def test_sync_continues_from_the_recorded_redis(prefix: str, redis_url: str) -> None:
    """Sync continues from the recorded Redis state, and refuses a newer state or position."""
    client = redis.Redis.from_url(redis_url)
    for name, content in _recorded("redis", prefix)["hashes"].items():
        if isinstance(content, str):
            client.set(name, content)
        else:
            client.hset(name, mapping=content)
    config = _config(prefix, stores=f'[stores.cache]\nkind = "redis"\nurl = "{redis_url}"\n')
    state = f"{prefix}:__tailrace:cache"
    with _store("cache", config) as store:
        _assert_served(store)
    with _store("cache", config) as store:
        serving = store.serving()
        assert serving is not None
        position = client.hget(state, "position:1")
        client.hset(state, "position:1", '{"format":99}')
        with pytest.raises(RefusedError, match="format 99"):
            store.position(serving)
        client.hset(state, "position:1", position)  # type: ignore[arg-type]  # it was there
        client.hset(state, "format", "99")
        with pytest.raises(RefusedError, match="format 99"):
            store.serving()
    client.close()


def test_sync_continues_from_the_recorded_elasticsearch(prefix: str, elasticsearch_url: str) -> None:
    """Sync continues from the recorded indices and document, and refuses newer ones."""
    client = Elasticsearch(elasticsearch_url)
    recorded = _recorded("elasticsearch", prefix)["indices"]
    for name, index in recorded.items():
        client.indices.create(index=name, mappings=index["mappings"], aliases=index["aliases"])
        for document in index["documents"]:
            client.index(index=name, id=document["id"], document=document["source"], refresh=True)
    config = _config(prefix, stores=f'[stores.search]\nkind = "elasticsearch"\nurl = "{elasticsearch_url}"\n')
    own = f"{prefix}.__tailrace-g1"
    with _store("search", config) as store:
        _assert_served(store)
    with _store("search", config) as store:
        serving = store.serving()
        assert serving is not None
        client.index(index=own, id="position", document={"format": 99}, refresh=True)
        with pytest.raises(RefusedError, match="format 99"):
            store.position(serving)
        meta = recorded[own]["mappings"]["_meta"]
        meta["_tailrace"]["format"] = 99
        client.indices.put_mapping(index=own, meta=meta)
        with pytest.raises(RefusedError, match="format 99"):
            store.serving()
    client.close()


def test_capture_goes_on_from_an_older_record(make_pipeline: MakePipeline) -> None:
    """Capture continues from records without the newer fields, loses and duplicates nothing, and writes today's
    format.
    """
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    pipeline.fence(while_running=capture)
    wait_for_look(pipeline, capture)
    capture.terminate()
    capture.expect_exit(0)
    older = _recorded("kafka", pipeline.prefix)
    for control, key in ((Control.PROGRESS, "progress"), (Control.SCHEMA, '{"state":"tables"}')):
        topic = control_topic(pipeline.prefix, control)
        fields = json.loads([each for each in older[topic] if each["key"] == key][-1]["value"])
        present = _last_value(pipeline.bootstrap, topic, key)
        value = json.dumps({name: present[name] for name in fields} | {"format": 1})
        _produce(pipeline.bootstrap, topic, {"key": key, "value": value, "headers": {}})
    pipeline.database.execute("DELETE FROM t WHERE id = 1")
    capture = pipeline.start()
    pipeline.assert_same("t", while_running=capture)
    last = pipeline.progress_records()[-1]
    assert (last["format"], last["slot"]) == (FORMAT, pipeline.slot_name)


def _last_value(bootstrap: str, topic: str, key: str) -> dict[str, Any]:
    value = read_last({"bootstrap.servers": bootstrap}, topic, key.encode())
    assert value is not None
    found: dict[str, Any] = json.loads(value)
    return found
