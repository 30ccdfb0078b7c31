"""Records that wait for a commit, or behind an event that waits for a re-select."""

from __future__ import annotations

from cdc.capture.events.record_queue import PendingRecords, RecordQueue
from cdc.encoding.incomplete_event import Incomplete
from cdc.kafka.record import RECORD_BYTES, Headers, Record
from tests.harness.pipeline.event_rules import Feed, make_table
from tests.harness.postgres.pgoutput import LEFT_OUT, begin, update


def test_records_leave_in_order_and_are_let_go_of_one_by_one() -> None:
    """What the producer has copied is not held a second time while the rest waits for room in its queue."""
    outbox = PendingRecords()
    for number in range(5):
        outbox.put("topic", b"%d" % number, b"value" if number % 2 else None, [("v", b"%d" % number)], number)
    seen: list[tuple[bytes, bytes | None, int, int]] = []

    def send(_topic: str, key: bytes, value: bytes | None, _headers: Headers, partition: int) -> None:
        seen.append((key, value, partition, len(outbox)))

    outbox.empty_into(send)
    assert seen == [(b"%d" % n, b"value" if n % 2 else None, n, 4 - n) for n in range(5)]


def test_its_size_is_that_of_the_values_and_of_the_objects_around_them() -> None:
    outbox = PendingRecords()
    outbox.put("topic", b"key", b"x" * 1000, [])
    outbox.put("topic", b"key", None, [])
    assert outbox.bytes == 1000 + 2 * RECORD_BYTES
    outbox.empty_into(lambda *_record: None)
    assert outbox.bytes == 0


# -- the queue ---------------------------------------------------------------------------------------------------------


class Producer:
    """What has reached the producer, by key."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def send(self, _topic: str, key: bytes, _value: bytes | None, _headers: Headers, _partition: int = -1) -> None:
        self.keys.append(key)


def _record(key: bytes) -> Record:
    return Record("topic", key, b"value", [])


def _incomplete() -> Incomplete:
    feed = Feed(make_table())
    feed(begin(), update(16_384, ["1", LEFT_OUT]))
    (event,) = feed.queue.take_held()
    assert isinstance(event, Incomplete)
    return event


def test_records_go_straight_to_the_producer_while_nothing_is_in_their_way() -> None:
    """`emit` is the producer's own function, which compiled code recognises."""
    producer = Producer()
    emit = producer.send
    queue = RecordQueue(emit=emit, send=producer.send)
    assert queue.emit is emit
    queue.put(_record(b"1"))
    assert producer.keys == [b"1"]
    queue.open_outbox()
    queue.hold(_incomplete())
    queue.close_outbox()
    queue.take_held()
    assert queue.emit is emit


def test_records_of_a_commit_leave_when_it_ends() -> None:
    """In their order, and before any later record."""
    producer = Producer()
    queue = RecordQueue(emit=producer.send, send=producer.send)
    queue.open_outbox()
    queue.emit(*_record(b"1"))
    queue.put(_record(b"2"))
    assert (producer.keys, len(queue.outbox)) == ([], 2)
    queue.close_outbox()
    queue.put(_record(b"3"))
    assert (producer.keys, len(queue.outbox)) == ([b"1", b"2", b"3"], 0)


def test_records_wait_behind_a_held_event() -> None:
    """Also when a commit begins or ends meanwhile; `held` keeps them in order, and its size counts them."""
    producer = Producer()
    queue = RecordQueue(emit=producer.send, send=producer.send)
    queue.open_outbox()
    queue.put(_record(b"before"))
    queue.hold(_incomplete())
    queue.emit(*_record(b"1"))
    queue.close_outbox()
    queue.put(_record(b"2"))
    assert producer.keys == [b"before"]
    assert queue.held_bytes > 3 * RECORD_BYTES
    assert [item.key for item in queue.take_held()] == [b'{"id":1}', b"1", b"2"]
    assert (queue.held, queue.held_bytes) == ([], 0)
    queue.put(_record(b"3"))
    assert producer.keys == [b"before", b"3"]
