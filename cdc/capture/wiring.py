"""Wires one capture session: opens what it needs, in order, and closes all of it at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from cdc.capture.batch_commit import BatchCommit
from cdc.capture.batches import Batches
from cdc.capture.commit_handover import CommitHandover
from cdc.capture.events.event_rules import EventRules
from cdc.capture.events.numbering import Numbering
from cdc.capture.events.record_queue import RecordQueue
from cdc.capture.events.transaction_envelopes import TransactionEnvelopes
from cdc.capture.incremental_snapshot import WatermarkHandler
from cdc.capture.logical_messages import LogicalMessages
from cdc.capture.message_topics import MessageTopics
from cdc.capture.reselect import Reselect
from cdc.capture.session import CaptureSession
from cdc.capture.table_messages import TableMessages
from cdc.capture.visible_transactions import VisibleTransactions
from cdc.config import Config
from cdc.encoding.envelope import clock
from cdc.encoding.row_runs import NativeRun
from cdc.logical_messages.heartbeat import Heartbeat
from cdc.logical_messages.signed import OwnMessages
from cdc.logs import get_logger
from cdc.postgres import catalog
from cdc.postgres.connection import connect
from cdc.postgres.stream_waiting import StreamWaiter
from cdc.postgres.worker_thread import Worker
from cdc.snapshot.incremental.window import ChunkWindows
from cdc.startup.startup import start
from cdc.tables.watch import TableWatch

log = get_logger("capture")


@contextmanager
def open_session(config: Config, stop: threading.Event) -> Iterator[CaptureSession | None]:
    """Open a session that holds the slot, and close it at the end. None: `stop` was set before it had the slot.

    The session closes the replication connection first: a server's shutdown waits only for it.
    """
    kafka, settings = config.kafka, config.capture
    connect_source = partial(connect, config.source.conninfo())
    server_lost = threading.Event()
    with ExitStack() as closing:
        worker = Worker("tailrace-kafka")
        closing.callback(worker.close)
        stream_waiter = StreamWaiter(worker, stop, server_lost.is_set)
        started = start(config, stream_waiter, stop=stop)
        if started is None:
            yield None
            return
        stream, publisher, topics, progress = started.stream, started.publisher, started.topics, started.progress
        closing.callback(topics.close)
        closing.callback(publisher.abandon)
        closing.callback(started.catalog.close)
        reselect = Reselect(connect_source, stop=server_lost.is_set)
        closing.callback(reselect.close)
        closing.callback(stream.close)
        database = catalog.database_name(started.catalog)

        numbering = Numbering(base=progress.base, resume_after=progress.version, messages_published=progress.messages)
        envelopes = TransactionEnvelopes(numbering, pipeline=kafka.prefix, database=database, now=clock())
        queue = RecordQueue(emit=publisher.emit, send=publisher.send)
        windows = ChunkWindows()
        rules = EventRules(numbering, envelopes, queue, windows, partitions=kafka.partitions)

        batch_commit = BatchCommit(
            prefix=kafka.prefix,
            timeout_seconds=settings.transaction_timeout_seconds,
            publisher=publisher,
            topics=topics,
            reselect=reselect,
            watch=TableWatch(config, started.catalog, topics),
            states=started.states,
        )
        commits = CommitHandover(
            batch_commit, queue, stream=stream, worker=worker, stream_waiter=stream_waiter, progress=progress
        )
        tables = TableMessages(
            config,
            catalog=started.catalog,
            numbering=numbering,
            rules=rules,
            windows=windows,
            commits=commits,
            publisher=publisher,
            topics=topics,
        )
        visible = VisibleTransactions(started.catalog, numbering=numbering, windows=windows, commits=commits)

        def after_heartbeat() -> None:
            tables.follow_renamed_roots()
            visible.forget()

        batches = Batches(
            settings,
            numbering=numbering,
            queue=queue,
            commits=commits,
            stream=stream,
            publisher=publisher,
            stream_waiter=stream_waiter,
            after_heartbeat=after_heartbeat,
        )
        watermarks = WatermarkHandler(
            config,
            numbering=numbering,
            rules=rules,
            queue=queue,
            windows=windows,
            database=database,
            call=commits.call,
            settle=commits.settle,
            introduce=tables.introduce,
        )
        messages = LogicalMessages(
            OwnMessages(started.secret, config.source.slot),
            MessageTopics(config),
            numbering=numbering,
            queue=queue,
            commits=commits,
            batches=batches,
            tables=tables,
            watermarks=watermarks,
            topics=topics,
        )
        session = CaptureSession(
            stream=stream,
            worker=worker,
            stream_waiter=stream_waiter,
            resumption=started.resumption,
            numbering=numbering,
            envelopes=envelopes,
            rules=rules,
            commits=commits,
            batches=batches,
            tables=tables,
            messages=messages,
            visible=visible,
            stop=stop,
        )
        heartbeat = Heartbeat(
            connect_source,
            slot=config.source.slot,
            secret=started.secret,
            interval_seconds=config.source.heartbeat_seconds,
            server_lost=server_lost,
        )
        closing.callback(heartbeat.close)
        heartbeat.start()
        log.info("streaming", slot=config.source.slot, version=str(progress.version), compiled=NativeRun is not None)
        yield session
