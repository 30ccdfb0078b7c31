"""Records that wait for a commit."""

from __future__ import annotations

from cdc.capture.pending_records import PendingRecords
from cdc.kafka.record import RECORD_BYTES, Headers


def test_records_leave_in_order_and_are_let_go_of_one_by_one() -> None:
    """Each record is released when the producer has copied it, while the rest waits for room in the queue."""
    outbox = PendingRecords()
    for number in range(5):
        outbox.put("topic", b"%d" % number, b"value" if number % 2 else None, [("v", b"%d" % number)], number)
    seen: list[tuple[bytes, bytes | None, int, int]] = []

    def send(_topic: str, key: bytes, value: bytes | None, _headers: Headers, partition: int) -> None:
        seen.append((key, value, partition, len(outbox)))

    outbox.empty_into(send)
    assert seen == [(b"%d" % n, b"value" if n % 2 else None, n, 4 - n) for n in range(5)]


def test_its_size_is_that_of_the_values_and_of_the_objects_around_them() -> None:
    """The size of pending records counts their values and the Python objects around them."""
    outbox = PendingRecords()
    outbox.put("topic", b"key", b"x" * 1000, [])
    outbox.put("topic", b"key", None, [])
    assert outbox.bytes == 1000 + 2 * RECORD_BYTES
    outbox.empty_into(lambda *_record: None)
    assert outbox.bytes == 0
