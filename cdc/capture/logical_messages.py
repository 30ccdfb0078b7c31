"""Handles the logical messages of the stream: Tailrace's own heartbeats and watermarks, and those of the user."""

from __future__ import annotations

from cdc.capture.batches import Batches
from cdc.capture.commit_handover import CommitHandover
from cdc.capture.events.numbering import Numbering
from cdc.capture.events.record_queue import RecordQueue
from cdc.capture.incremental_snapshot import WatermarkHandler
from cdc.capture.message_topics import MessageTopics, message_record
from cdc.capture.table_messages import TableMessages
from cdc.kafka.topics import Topics
from cdc.logical_messages.heartbeat import PREFIX as HEARTBEAT_PREFIX
from cdc.logical_messages.signed import OWN_PREFIX, OwnMessages
from cdc.pgoutput.messages import LogicalMessage
from cdc.snapshot.incremental.watermarks import PREFIX as COPY_PREFIX


class LogicalMessages:
    """Publishes the user's messages, and acts on Tailrace's own."""

    def __init__(
        self,
        own_messages: OwnMessages,
        message_topics: MessageTopics,
        *,
        numbering: Numbering,
        queue: RecordQueue,
        commits: CommitHandover,
        batches: Batches,
        tables: TableMessages,
        watermarks: WatermarkHandler,
        topics: Topics,
    ) -> None:
        self._own_messages = own_messages
        self._message_topics = message_topics
        self._numbering = numbering
        self._queue = queue
        self._commits = commits
        self._batches = batches
        self._tables = tables
        self._watermarks = watermarks
        self._topics = topics

    def on_message(self, message: LogicalMessage) -> None:
        if not message.prefix.startswith(OWN_PREFIX):
            self._on_user_message(message)
            return
        content = self._own_messages.opened(message, self._numbering.begin)
        if content is not None:
            self._on_own_message(message, content)

    def _on_own_message(self, message: LogicalMessage, content: bytes) -> None:
        if message.prefix == HEARTBEAT_PREFIX:
            self._batches.note_heartbeat()
            self._tables.empty_topics_of_dropped_tables(message.lsn)
        elif message.prefix == COPY_PREFIX:
            commits = self._commits
            commits.replace_states(self._watermarks.on_watermark(content, message.lsn, commits.states))

    def _on_user_message(self, message: LogicalMessage) -> None:
        """Publish a message, unless it was published before the restart.

        It gets no seq, but capture counts it in order to resume after it.
        """
        commits, message_topics = self._commits, self._message_topics
        topic = message_topics.topic_for(message.prefix, commits.progress)
        if topic is None:
            return
        if topic not in commits.progress.topic_ids:
            commits.settle()
            topic_id = commits.call(lambda: self._topics.ensure_messages(topic))
            commits.replace_progress(commits.progress.with_message_topic(topic, topic_id))
        number = self._numbering.number_message(message)
        if number is not None:
            self._queue.put(message_record(message, topic, number, is_shared=message_topics.is_shared(topic)))
