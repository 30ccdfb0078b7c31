"""Publishes one batch in one Kafka transaction: all the blocking steps.

It runs in the worker thread, while the main thread keeps answering the replication connection. Exactly-once delivery
depends on the order of the steps: events, flush, end offsets, progress record, commit. The caller confirms the slot,
and only after `publish` has returned.
"""

from __future__ import annotations

from contextlib import suppress

from cdc.capture.reselect import Reselect
from cdc.encoding.incomplete_event import Held
from cdc.errors import TransientError
from cdc.kafka.topics import Topics
from cdc.names import Control, control_topic
from cdc.positions import continuity
from cdc.positions.progress import KEY as PROGRESS_KEY
from cdc.positions.progress import Progress
from cdc.publishing.publisher import Publisher
from cdc.tables.recorded_state import KEY as STATES_KEY
from cdc.tables.recorded_state import TableStates
from cdc.tables.watch import TableWatch


class BatchCommit:
    """Publishes batches. `states`: the states of the tables, as the next batch records them."""

    def __init__(
        self,
        *,
        prefix: str,
        timeout_seconds: float,
        publisher: Publisher,
        topics: Topics,
        reselect: Reselect,
        watch: TableWatch,
        states: TableStates,
    ) -> None:
        self.states = states
        self._states_written = states
        self._timeout_seconds = timeout_seconds
        self._publisher = publisher
        self._topics = topics
        self._reselect = reselect
        self._watch = watch
        self._positions_topic = control_topic(prefix, Control.POSITIONS)
        self._progress_topic = control_topic(prefix, Control.PROGRESS)
        self._schema_topic = control_topic(prefix, Control.SCHEMA)

    def replace_states(self, states: TableStates) -> None:
        """Write these states to `__schema` with the next batch. Call this between two calls of `publish`."""
        self.states = states

    def publish(self, held: Held, draft: Progress, *, heartbeat: bool) -> Progress:
        """Publish the batch and return the committed progress record.

        `heartbeat`: the batch contains a heartbeat, so also check the topics and read the catalog.
        """
        publisher = self._publisher
        if heartbeat:
            continuity.check_topics(draft, self._topics)
            publication, self.states = self._watch.poll(draft, self.states)
            draft = draft.with_publication(publication.identity, publication.tables)
        publisher.begin()
        self.send_completed(held)
        publisher.flush(self._timeout_seconds, lambda: self._check_topics(draft))
        touched = {name: len(draft.end_offsets[name]) for name in publisher.touched if name in draft.end_offsets}
        progress = draft.with_end_offsets(self._topics.end_offsets(touched) if touched else {})
        progress = progress.with_parked(publisher.parked_counts)
        self._send_records(progress, heartbeat=heartbeat)
        publisher.commit(self._timeout_seconds)
        self._states_written = self.states
        return progress

    def send_completed(self, held: Held) -> None:
        """Complete the held events by re-select and send them to the producer."""
        for record in self._reselect.complete(held):
            self._publisher.send(*record)

    def _send_records(self, progress: Progress, *, heartbeat: bool) -> None:
        if self.states is not self._states_written:
            self._publisher.send(self._schema_topic, STATES_KEY, self.states.encode(), [])
        data, headers = progress.encode(), [("v", str(progress.version).encode())]
        self._publisher.send(self._progress_topic, PROGRESS_KEY, data, headers)
        if heartbeat:
            self._publisher.send(self._positions_topic, PROGRESS_KEY, data, headers)

    def _check_topics(self, progress: Progress) -> None:
        with suppress(TransientError):  # the broker is unavailable, perhaps only for a while
            continuity.check_topics(progress, self._topics)
