"""The compiled and the ordinary producer path write the same records, on a real broker."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import psutil
import pytest
from confluent_kafka import KafkaException

from cdc.encoding import row_runs
from cdc.encoding.table_encoder import TableEncoder
from cdc.errors import TransientError
from cdc.kafka.producer import PlainRowSender
from cdc.kafka.record import Emit
from cdc.publishing.publisher import Publisher
from tests.harness.kafka.records import Record, read_topic
from tests.harness.kafka.topics import create_topic
from tests.harness.pipeline.event_rules import make_table
from tests.harness.postgres.pgoutput import cells
from tests.harness.processes.waiting import eventually

pytestmark = pytest.mark.skipif(
    row_runs.NativeRun is None, reason="no C compiler: test_row_run says whether that is so"
)

PARTS = [
    *(b'{"before":', b',"after":', b',"source":{"version":"1","a":', b',"lsn":', b'},"op":"c","seq":'),
    *(b',"order":', b',"table_order":'),
]
HEAD = b"w" + (0x1234).to_bytes(8, "big") + bytes(16)
MAX_MESSAGE_BYTES = 20_000

MakePublisher = Callable[..., Publisher]


@pytest.fixture
def make_publisher(kafka_bootstrap: str, prefix: str) -> MakePublisher:
    """Each publisher fences the one before."""

    def make(wait_for_room: Callable[[], None] = lambda: time.sleep(0.01), **options: str) -> Publisher:
        publisher = Publisher(
            {"bootstrap.servers": kafka_bootstrap} | {name.replace("_", "."): value for name, value in options.items()},
            transactional_id=prefix,
            transaction_timeout_seconds=60,
            max_message_bytes=MAX_MESSAGE_BYTES,
            parked_topic=f"{prefix}.__parked",
            wait_for_room=wait_for_room,
        )
        publisher.fence(30)
        return publisher

    return make


@pytest.fixture
def topics(kafka_bootstrap: str, prefix: str) -> list[str]:
    names = [f"{prefix}.public.{name}" for name in ("a", "b")]
    for name in names:
        create_topic(kafka_bootstrap, name, 4, cleanup_policy="compact")
    create_topic(kafka_bootstrap, f"{prefix}.__parked", 1)
    return names


def take(table: TableEncoder, emit: Emit, topic: str, names: list[str], *, seq: int = 0) -> int:
    """Send a run of inserts, the n-th with key n and the n-th of the names; returns the number of the last."""
    items = [
        HEAD + b"I" + bytes(4) + b"N" + cells([str(number), name]) for number, name in enumerate(names, start=seq + 1)
    ]
    ended = table.run.take(
        items, 0, len(items), False, PARTS, b"}", b"00000000000000aa.", topic, emit, -1, seq, seq, seq
    )
    assert ended == (len(items), *([seq + len(items)] * 3))
    return ended[1]


def outline(records: list[Record]) -> list[tuple[int, bytes, object, dict[str, bytes]]]:
    """The records in the order of each partition."""
    return [(each.partition, each.key, each.value, each.headers) for each in sorted(records, key=lambda r: r.partition)]


def test_both_paths_write_the_same_records(
    make_publisher: MakePublisher, topics: list[str], kafka_bootstrap: str
) -> None:
    """Both paths give the same key, value, version and partition, and the publisher counts every record."""
    publisher, table = make_publisher(), make_table()
    assert publisher.emit != publisher.send, "there is a compiled way"
    last = [0, 0]
    for names in (["x" * 40] * 300, ["é\n"] * 200):
        last[0] = take(table, publisher.emit, topics[0], names, seq=last[0])
        last[1] = take(table, publisher.send, topics[1], names, seq=last[1])
    assert publisher.count == 1000
    assert publisher.touched == set(topics)
    assert publisher.queued_bytes > 0
    publisher.commit(30)
    assert (publisher.count, publisher.queued_bytes) == (0, 0)
    compiled, ordinary = (outline(read_topic(kafka_bootstrap, topic)) for topic in topics)
    assert len(compiled) == 500
    assert compiled == ordinary


def test_both_paths_write_the_same_snapshot_rows(
    make_publisher: MakePublisher, topics: list[str], kafka_bootstrap: str
) -> None:
    """A block of snapshot rows gives the same records, compiled at once or one by one."""
    publisher = make_publisher()
    rows = [(b'{"id":%d}' % number, b'{"op":"r","seq":%d}' % number) for number in range(500)]
    publisher.send_rows(topics[0], rows, b"00000000000000aa.00000000")
    PlainRowSender(publisher.send).send_rows(topics[1], rows, b"00000000000000aa.00000000")
    assert publisher.count == 1000
    publisher.commit(30)
    compiled, ordinary = (outline(read_topic(kafka_bootstrap, topic)) for topic in topics)
    assert len(compiled) == 500
    assert compiled == ordinary


@pytest.mark.parametrize("way", ["emit", "send"])
def test_a_delivery_that_fails_breaks_the_transaction_with_its_reason(
    make_publisher: MakePublisher, kafka_bootstrap: str, prefix: str, way: str
) -> None:
    """A failed delivery aborts the whole transaction, and the log has the reason."""
    topic = f"{prefix}.public.narrow"
    create_topic(kafka_bootstrap, topic, 1, cleanup_policy="compact", max_message_bytes="1000")
    publisher = make_publisher(compression_type="none")
    take(make_table(), getattr(publisher, way), topic, ["x" * 5000])
    with pytest.raises(TransientError, match="Message size too large"):
        publisher.commit(30)
    assert read_topic(kafka_bootstrap, topic) == []


def test_a_second_transaction_begins_where_the_first_was_committed(
    make_publisher: MakePublisher, topics: list[str], kafka_bootstrap: str
) -> None:
    """The first record after a commit opens a new Kafka transaction, and its topic counts as touched again."""
    publisher, table = make_publisher(), make_table()
    for _ in range(3):
        take(table, publisher.emit, topics[0], ["again"])
        assert publisher.touched == {topics[0]}
        publisher.commit(30)
    assert len(read_topic(kafka_bootstrap, topics[0])) == 3


def test_what_is_not_committed_is_never_seen(
    make_publisher: MakePublisher, topics: list[str], kafka_bootstrap: str
) -> None:
    """The next producer of this id aborts uncommitted records of the compiled path, and the first cannot commit
    them.
    """
    first, table = make_publisher(), make_table()
    take(table, first.emit, topics[0], ["lost"] * 10)
    first.flush(30, lambda: None)
    second = make_publisher()
    take(table, second.emit, topics[0], ["kept"])
    second.commit(30)
    with pytest.raises(TransientError, match="fenced"):
        first.commit(30)
    assert [record.value["after"]["name"] for record in read_topic(kafka_bootstrap, topics[0])] == ["kept"]


def test_a_full_queue_is_waited_for(make_publisher: MakePublisher, topics: list[str], kafka_bootstrap: str) -> None:
    """Records that do not fit into the queue wait on the ordinary path; none is lost, and each partition keeps its
    order.
    """
    waited: list[int] = []
    publisher, table = (
        make_publisher(lambda: waited.append(1), queue_buffering_max_messages="50", linger_ms="0"),
        make_table(),
    )
    take(table, publisher.emit, topics[0], ["n"] * 5000)
    publisher.commit(60)
    records = read_topic(kafka_bootstrap, topics[0])
    assert waited
    assert sorted(record.value["seq"] for record in records) == list(range(1, 5001))
    for partition in range(4):
        numbers = [record.value["seq"] for record in records if record.partition == partition]
        assert numbers == sorted(numbers)


def test_a_row_that_is_too_large_is_parked(
    make_publisher: MakePublisher, topics: list[str], kafka_bootstrap: str, prefix: str
) -> None:
    """A row over the size limit is parked and the others flow; the next row of its key settles it.

    Rows of that topic are looked up one by one until then.
    """
    publisher, table = make_publisher(), make_table()
    take(table, publisher.emit, topics[0], ["small", "x" * MAX_MESSAGE_BYTES, "small too"])
    assert publisher.parked_counts == {topics[0]: 1}
    publisher.commit(30)
    live = [record.value for record in read_topic(kafka_bootstrap, topics[0]) if record.value is not None]
    assert sorted((each["seq"], each["op"]) for each in live) == [(1, "c"), (2, "d"), (3, "c")]
    (parked,) = read_topic(kafka_bootstrap, f"{prefix}.__parked")
    assert (parked.key, parked.value["version"]) == (b'{"id":2}', "00000000000000aa.00000002")
    take(table, publisher.emit, topics[0], ["small"], seq=1)
    assert publisher.parked_counts == {}
    publisher.commit(30)
    _, settled = read_topic(kafka_bootstrap, f"{prefix}.__parked")
    assert settled.value["settled"]


def test_closed_producers_release_threads_and_handles(make_publisher: MakePublisher, topics: list[str]) -> None:
    """A closed producer releases its threads and handles, since capture makes a new one after every error."""
    table, process = make_table(), psutil.Process()

    def live_and_die(*, in_good_order: bool) -> None:
        publisher = make_publisher(linger_ms="10000")
        take(table, publisher.emit, topics[0], ["n"] * 100)
        if in_good_order:
            publisher.abandon()

    gc.collect()
    before = process.num_threads()
    for number in range(6):
        # Every second one is destroyed with all of it queued, and hears of its records only then.
        live_and_die(in_good_order=number % 2 == 0)
        gc.collect()  # as capture does between two sessions
    eventually(lambda: process.num_threads() <= before, 30, "the threads of the producers to end")


def test_plugins_that_the_user_names_are_loaded_too(make_publisher: MakePublisher) -> None:
    """Plugins named in the config are loaded, and a missing one is an error."""
    with pytest.raises(KafkaException, match="monitoring-of-mine"):
        make_publisher(plugin_library_paths="monitoring-of-mine")
