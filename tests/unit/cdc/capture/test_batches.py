"""When a batch ends and when a source transaction is split over several, without servers.

A list of commits stands for Kafka; real commits, kills and stalls are in tests/acceptance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from cdc.capture.batch_commit import BatchCommit
from cdc.capture.batches import Batches
from cdc.capture.commit_handover import CommitHandover
from cdc.config.model import CaptureConfig as Settings
from cdc.encoding.incomplete_event import Held
from cdc.encoding.table_encoder import TableEncoder
from cdc.kafka.record import Headers
from cdc.lsn import LSN
from cdc.pgoutput.decoder import decode_message
from cdc.pgoutput.messages import Commit
from cdc.positions.progress import Progress
from cdc.postgres.replication import ReplicationStream
from cdc.postgres.stream_waiting import StreamWaiter
from cdc.postgres.worker_thread import Worker
from cdc.publishing.publisher import Publisher
from tests.harness.pipeline.event_rules import Feed, full, make_table
from tests.harness.postgres.pgoutput import LEFT_OUT, begin, commit, insert, update

ORDERS = 16_384
NOTHING = Progress(
    state="streaming",
    position=0,
    seq=0,
    base=0,
    confirm_lsn=0,
    system_identifier="",
    timeline=1,
    publication="",
    publication_tables={},
    topic_ids={},
    end_offsets={},
)


class Topics:
    """Publisher and commits in one: `committed` has the progress of each Kafka transaction, with its events' keys."""

    def __init__(self) -> None:
        self.committed: list[tuple[Progress, list[bytes]]] = []
        self.completed: list[int] = []  # how many events were completed at a time
        self.commits_may_end = threading.Event()
        self.commits_may_end.set()
        self.queued_bytes = 0
        self._sent: list[bytes] = []

    @property
    def count(self) -> int:
        return len(self._sent)

    def poll(self) -> None:
        pass

    def send(self, _topic: str, key: bytes, _value: bytes | None, _headers: Headers, _partition: int = -1) -> None:
        self._sent.append(key)

    emit = send

    def send_completed(self, held: Held) -> None:
        self.completed.append(len(held))
        self._sent.extend(item.key for item in held)

    def publish(self, held: Held, draft: Progress, *, heartbeat: bool) -> Progress:
        assert not heartbeat
        assert self.commits_may_end.wait(30)
        if held:
            self.send_completed(held)
        self.committed.append((draft, self._sent))
        self._sent = []
        return draft


class Stream:
    """A stream in which messages arrive only when a test adds them."""

    def watch(self, descriptor: int) -> None:
        pass

    has_more = False

    def pump(self, _timeout_seconds: float) -> bool:
        return self.has_more

    def confirm(self, lsn: LSN) -> None:
        pass

    def send_status(self) -> None:
        pass


class Batching:
    """Feeds messages as capture does, and checks the batch before each."""

    def __init__(
        self, worker: Worker, *, table: TableEncoder | None = None, progress: Progress = NOTHING, **settings: float
    ) -> None:
        self.topics = Topics()
        self.feed = Feed(table or make_table(), resume_after=progress.version, emit=self.topics.send)
        self.stream = Stream()
        self.is_late = False
        stream, waiter = cast("ReplicationStream", self.stream), StreamWaiter(worker, threading.Event(), lambda: False)
        self.commits = CommitHandover(
            cast("BatchCommit", self.topics),
            self.feed.queue,
            stream=stream,
            worker=worker,
            stream_waiter=waiter,
            progress=progress,
        )
        self.batches = Batches(
            Settings(**settings),  # type: ignore[arg-type]  # by name
            numbering=self.feed.numbering,
            queue=self.feed.queue,
            commits=self.commits,
            stream=stream,
            publisher=cast("Publisher", self.topics),
            stream_waiter=waiter,
            after_heartbeat=lambda: None,
        )

    def __call__(self, *messages: bytes) -> None:
        for data in messages:
            self.batches.check_limits()
            if data[:1] == b"C":
                message = cast("Commit", decode_message(data))
                while self.feed.rules.correct_keys(message):
                    self.batches.check_limits()
                self.feed.rules.on_commit(message)
                self.batches.on_commit(message, is_late=self.is_late)
            else:
                self.feed(data)
            if data[:1] == b"B":
                self.batches.on_begin()

    def end(self) -> list[tuple[bool, int]]:
        """Publish the pending rows; returns for each Kafka transaction whether it is partial, and its size."""
        self.batches.finish()
        return [(progress.inside_transaction, len(keys)) for progress, keys in self.topics.committed]


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("test")
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock for the batches that moves only when a test moves it."""
    now = 1000.0

    def put_forward(seconds: float) -> None:
        nonlocal now
        now += seconds

    for module in ("batches", "commit_handover"):
        monkeypatch.setattr(f"cdc.capture.{module}.time", SimpleNamespace(monotonic=lambda: now))
    return put_forward


def _rows(first: int, last: int) -> list[bytes]:
    return [insert(ORDERS, [str(number), "a"]) for number in range(first, last + 1)]


@pytest.mark.parametrize(("rows", "expected"), [(99, [(False, 99)]), (100, [(False, 100)])])
def test_a_transaction_of_up_to_the_documented_size_is_published_at_once(
    worker: Worker, rows: int, expected: list[tuple[bool, int]]
) -> None:
    """A transaction of exactly `transaction_events` is published whole, wherever the checks occur."""
    batching = Batching(worker, transaction_events=100, batch_milliseconds=0)
    batching(begin(), *_rows(1, rows), commit())
    assert batching.end() == expected


def test_a_backlog_is_gathered_until_the_server_says_that_there_is_no_more(
    worker: Worker, clock: Callable[[float], None]
) -> None:
    """Batches are large while capture catches up, and the last one does not wait for more messages."""
    batching = Batching(worker)
    batching.is_late = batching.stream.has_more = True
    batching(begin(0x5000), *_rows(1, 3), commit(0x5000))
    assert batching.batches.end_or_wait()
    assert batching.topics.committed == []
    batching.batches.on_keepalive(LSN(0x6000))
    assert batching.batches.end_or_wait()
    batching.commits.settle()
    assert [len(keys) for _, keys in batching.topics.committed] == [3]


def test_a_larger_transaction_is_spread(worker: Worker) -> None:
    """Each part of a larger transaction is committed with a progress record that says so."""
    batching = Batching(worker, transaction_events=100, batch_milliseconds=0)
    batching(begin(), *_rows(1, 250), commit())
    assert batching.end() == [(True, 101), (True, 101), (False, 48)]


def test_a_transaction_that_takes_too_long_is_spread(worker: Worker, clock: Callable[[float], None]) -> None:
    """The rows so far are committed before Kafka's transaction timeout."""
    batching = Batching(worker, transaction_timeout_seconds=60)
    batching(begin(), *_rows(1, 2))
    clock(21)
    batching(*_rows(3, 4), commit())
    assert batching.end() == [(True, 2), (False, 2)]


def test_time_behind_a_stalled_commit_splits_nothing(worker: Worker, clock: Callable[[float], None]) -> None:
    """Rows that wait for the previous commit do not count towards the timeout of their own transaction."""
    batching = Batching(worker, transaction_timeout_seconds=60, batch_milliseconds=0)
    batching.topics.commits_may_end.clear()
    batching(begin(0x5000), *_rows(1, 1), commit(0x5000))
    batching(begin(0x6000), *_rows(2, 3))
    clock(50)
    batching(*_rows(4, 4))
    batching.topics.commits_may_end.set()
    batching.commits.settle()
    batching(*_rows(5, 5), commit(0x6000))
    assert batching.end() == [(False, 1), (False, 4)]


def test_what_waits_for_a_re_select_is_released_by_number_and_by_size(worker: Worker) -> None:
    """Events that wait for a re-select are limited by number and by size, also within a batch and a transaction."""
    batching = Batching(worker)
    batching(begin(), update(ORDERS, ["1", LEFT_OUT]), *_rows(2, 2100), update(ORDERS, ["3", LEFT_OUT]))
    assert batching.topics.completed == [2000]
    batching(*(insert(ORDERS, [str(number), "x" * (1 << 20)]) for number in range(1, 6)), commit())
    assert batching.topics.completed == [2000, 5]
    assert batching.end() == [(False, 2106)]
    assert batching.topics.completed == [2000, 5]


# -- corrections of deferrable keys ------------------------------------------------------------------------------------


def _deferrable() -> TableEncoder:
    return make_table(columns=full(), identity="f", deferrable_key=True)


def _shift(count: int) -> list[bytes]:
    """`SET id = id + 1`: all keys but the first and the last are queried at the commit."""
    return [update(ORDERS, [str(n + 1), "a"], old=[str(n), "a"]) for n in range(1, count + 1)]


def test_corrections_of_a_large_transaction_neither_pile_up_nor_come_at_once(worker: Worker) -> None:
    """Corrections are queried in slices and spread over Kafka transactions as changes are."""
    batching = Batching(worker, table=_deferrable(), transaction_events=3000, batch_milliseconds=0)
    batching(begin(), *_shift(10_000), commit())
    parts = batching.end()
    assert sum(size for _, size in parts) == 3 * 10_000 + 9_999, "a delete, a tombstone and an insert each; and those"
    assert [inside for inside, _ in parts] == [True] * 6 + [False]
    assert max(batching.topics.completed) < 2_000 + 256
    assert sum(batching.topics.completed) == 9_999


def test_a_transaction_is_not_split_for_the_numbers_that_corrections_leave_out(worker: Worker) -> None:
    """One correction after 80 changes gives 81 events, although its own number is 160."""
    batching = Batching(worker, table=_deferrable(), transaction_events=100, batch_milliseconds=0)
    inserts = [insert(ORDERS, [str(n), "a"]) for n in range(100, 178)]
    batching(begin(), *inserts, *_shift(2), commit())
    assert batching.end() == [(False, 78 + 2 * 3 + 1)]


def test_corrections_go_on_where_a_killed_capture_was(worker: Worker) -> None:
    """After capture is killed after any Kafka transaction, the remaining corrections follow exactly once."""
    messages = [begin(), *_shift(2000), commit()]
    whole = Batching(worker, table=_deferrable(), transaction_events=700, batch_milliseconds=0)
    whole(*messages)
    whole.end()
    parts = whole.topics.committed
    assert len(parts) > 4
    for number, (progress, _) in enumerate(parts[:-1], start=1):
        again = Batching(worker, table=_deferrable(), progress=progress, transaction_events=700, batch_milliseconds=0)
        again(*messages)
        again.end()
        rest = [key for _, keys in again.topics.committed for key in keys]
        assert rest == [key for _, keys in parts[number:] for key in keys]
