"""One batch into Kafka: everything about it that blocks. Runs in the worker thread, while the stream is attended to.

The order is the promise: events, flush, end offsets, progress record, commit. The slot is confirmed by the caller, and
only after this has returned.
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
    """`states` is the caller's to change between two calls; a change is written with the next batch."""

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

    def publish(self, held: Held, draft: Progress, *, heartbeat: bool) -> Progress:
        """The progress record as it was committed. With a heartbeat, the topics and the catalog are looked at too."""
        publisher = self._publisher
        if heartbeat:
            continuity.check_topics(draft, self._topics)
            publication, self.states = self._watch.look(draft, self.states)
            draft = draft.with_publication(publication.identity, publication.tables)
        publisher.begin()
        self.send_completed(held)
        publisher.flush(self._timeout_seconds, lambda: self._look_at_topics(draft))
        touched = {name: len(draft.end_offsets[name]) for name in publisher.touched if name in draft.end_offsets}
        progress = draft.with_end_offsets(self._topics.end_offsets(touched) if touched else {})
        progress = progress.with_parked(publisher.parked_counts)
        self._send_records(progress, heartbeat=heartbeat)
        publisher.commit(self._timeout_seconds)
        self._states_written = self.states
        return progress

    def send_completed(self, held: Held) -> None:
        for record in self._reselect.complete(held):
            self._publisher.send(*record)

    def _send_records(self, progress: Progress, *, heartbeat: bool) -> None:
        if self.states is not self._states_written:
            self._publisher.send(self._schema_topic, STATES_KEY, self.states.encode(), [])
        data, headers = progress.encode(), [("v", str(progress.version).encode())]
        self._publisher.send(self._progress_topic, PROGRESS_KEY, data, headers)
        if heartbeat:
            self._publisher.send(self._positions_topic, PROGRESS_KEY, data, headers)

    def _look_at_topics(self, progress: Progress) -> None:
        with suppress(TransientError):  # the broker is away: that may pass
            continuity.check_topics(progress, self._topics)
