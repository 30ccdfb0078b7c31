"""Turns pgoutput messages into versioned Kafka records, by the rules of docs/reference/events.md. No I/O."""

from __future__ import annotations

from collections.abc import Collection

from cdc.capture.events.key_conflicts import CORRECTIONS_AT_ONCE, KeyCorrections
from cdc.capture.events.numbering import Numbering
from cdc.capture.events.record_queue import RecordQueue
from cdc.capture.events.transaction_envelopes import TransactionEnvelopes
from cdc.encoding.envelope import NULL, Envelope, Place
from cdc.encoding.incomplete_event import Incomplete
from cdc.encoding.row_runs import ROW_AT
from cdc.encoding.table_encoder import Shape, TableEncoder
from cdc.errors import ProtocolError
from cdc.kafka.record import Record
from cdc.pgoutput.decoder import HEAD_BYTES
from cdc.pgoutput.messages import UNCHANGED, Begin, Commit, Delete, Insert, Origin, Truncate, Update, Value
from cdc.snapshot.incremental.window import ChunkWindows

# The arguments of the fast path for one kind of row message: table, operation, whether it has the old row.
_FastPath = tuple[TableEncoder, bytes, bool]


class EventRules:
    """Renders the events of numbered changes and queues their records. Call it with the messages in stream order.

    `tables`: the tables by relation. `unpublished`: relations of tables that are no longer published.
    """

    def __init__(
        self,
        numbering: Numbering,
        envelopes: TransactionEnvelopes,
        queue: RecordQueue,
        windows: ChunkWindows,
        *,
        partitions: int,
    ) -> None:
        self.tables: dict[int, TableEncoder] = {}
        self.unpublished: set[int] = set()
        self._numbering = numbering
        self._envelopes = envelopes
        self._queue = queue
        self._windows = windows
        self._partitions = partitions
        self._key_corrections = KeyCorrections()
        # First 8 bytes of a row message: kind, relation, kind of tuple, column count.
        self._fast_paths: dict[bytes, _FastPath] = {}
        self._watched: frozenset[str] = frozenset()

    # -- the transaction -------------------------------------------------------------------------------------

    def on_begin(self, message: Begin) -> None:
        self._numbering.on_begin(message)
        self._windows.streamed(message.xid)
        self._envelopes.on_begin()

    def on_commit(self, message: Commit) -> None:
        while self.correct_keys(message):
            pass
        self._numbering.on_commit(message)
        self._envelopes.on_commit(message)

    def on_origin(self, message: Origin) -> None:
        """Note the replication origin of a transaction that this server applied from another. It follows the Begin."""
        self._envelopes.on_origin(message)

    # -- tables ----------------------------------------------------------------------------------------------

    def on_table(self, table: TableEncoder) -> None:
        """Register a table after its Relation message: a new table, or one whose columns have changed."""
        old = self._replace(table.relation.oid)
        self.unpublished.discard(table.relation.oid)
        self.tables[table.relation.oid] = table
        if old is not None:
            self._envelopes.replace(old, table)
            self._key_corrections.replace(old, table)
        self._fast_paths.update(self._fast_paths_of(table))

    def on_table_unpublished(self, oid: int) -> None:
        """Handle the Relation message of a table that is no longer published: number its rows, publish nothing."""
        self._replace(oid)
        self.unpublished.add(oid)

    def watch_windows(self) -> None:
        """Update the set of tables whose keys capture notes. Call this after every change of the windows."""
        self._watched = self._windows.topics
        self._fast_paths = {
            head: path for table in self.tables.values() for head, path in self._fast_paths_of(table).items()
        }

    def _replace(self, oid: int) -> TableEncoder | None:
        old = self.tables.pop(oid, None)
        self._fast_paths = {head: path for head, path in self._fast_paths.items() if path[0] is not old}
        return old

    def _fast_paths_of(self, table: TableEncoder) -> dict[bytes, _FastPath]:
        """Return by message head, the fast paths of a table: none while capture must note the keys of its rows."""
        if table.shape.deferrable_key or table.topic in self._watched:
            return {}
        tag, count = table.relation.oid.to_bytes(4, "big"), len(table.relation.columns).to_bytes(2, "big")
        return {
            b"I" + tag + b"N" + count: (table, b"c", False),
            b"U" + tag + b"N" + count: (table, b"u", False),
            b"U" + tag + b"O" + count: (table, b"u", True),
        }

    # -- rows ------------------------------------------------------------------------------------------------

    def take_rows(self, items: list[bytes], at: int, end: int) -> int:
        """Publish the inserts and updates of whole rows from items[at] on: the fast path.

        Returns the index at which it stopped: `end`, or the first message that the fast path cannot handle. The caller
        decodes that message and calls the matching `on_…` method.
        """
        while at < end:
            fast_path = self._fast_paths.get(items[at][HEAD_BYTES:ROW_AT])
            if fast_path is None:
                return at
            stopped_at = self._take_run(*fast_path, items, at, end)
            if stopped_at == at:
                return at
            at = stopped_at
        return at

    def _take_run(
        self, table: TableEncoder, op: bytes, has_old_row: bool, items: list[bytes], at: int, end: int
    ) -> int:
        numbering, envelope = self._numbering, self._envelopes.of(table)
        at, seq, order, table_order = table.run.take(
            items,
            at,
            end,
            has_old_row,
            envelope.parts,
            self._envelopes.tails[op],
            numbering.version_head,
            table.topic,
            self._queue.emit,
            numbering.skip_through,
            numbering.seq,
            numbering.order,
            envelope.table_order,
        )
        numbering.advance(seq, order)
        envelope.advance(table_order)
        return at

    def on_row(self, message: Insert | Update | Delete, lsn: int) -> None:
        if self._numbering.begin is None:
            raise ProtocolError(f"a row of relation {message.relation_oid} arrived outside a transaction")
        if message.relation_oid in self.unpublished:
            self._numbering.next_change()  # capture numbers the change but does not publish it
        elif isinstance(message, Insert):
            self.on_insert(message, lsn)
        elif isinstance(message, Update):
            self.on_update(message, lsn)
        else:
            self.on_delete(message, lsn)

    def on_insert(self, message: Insert, lsn: int) -> None:
        table = self._table(message.relation_oid, message.new)
        seq = self._numbering.next_change()
        key = table.encode_key(message.new)
        if table.shape.deferrable_key:
            self._key_corrections.of(table).enter(seq, key, table.key_values(message.new))
        self._upsert(table, b"c", NULL, message.new, key, lsn)

    def on_update(self, message: Update, lsn: int) -> None:
        table = self._table(message.relation_oid, message.new, message.old)
        self._numbering.next_change()
        old, new = message.old, message.new
        before = NULL
        if old is not None:
            # The new row has "unchanged" even where the old row has the value. A key can be TOASTed too.
            known = range(len(old)) if message.old_is_whole else table.key_indexes
            new = [old[i] if value is UNCHANGED and i in known else value for i, value in enumerate(new)]
            if message.old_is_whole:
                before = table.encode_row(old)
            if any(old[i] != new[i] for i in table.key_indexes):
                self._change_key(table, old, new, lsn)
                return
        self._upsert(table, b"u", before, new, table.encode_key(new), lsn)

    def on_delete(self, message: Delete, lsn: int) -> None:
        table = self._table(message.relation_oid, message.old)
        seq = self._numbering.next_change()
        key = table.encode_key(message.old)
        if table.shape.deferrable_key:
            self._key_corrections.of(table).leave(seq, key, table.key_values(message.old))
        self._remove(table, message.old, key, lsn)

    def on_truncate(self, message: Truncate, lsn: int, partial: Collection[str] = ()) -> None:
        """Write one truncate marker per topic and partition, all with the version of this one message.

        `partial`: topics of partitioned tables of which only some partitions were truncated. They get no marker.
        """
        self._numbering.next_change()
        tables = {table.topic: table for table in map(self._table, message.relation_oids)}
        for topic, table in tables.items():
            if topic not in partial:
                self._mark_empty(topic, self._envelopes.of(table), lsn)

    def on_table_dropped(self, shape: Shape, lsn: int) -> None:
        """Write truncate markers for a table that was dropped or renamed: its topic's rows no longer exist."""
        self._numbering.next_change()
        self._mark_empty(shape.topic, self._envelopes.new(shape), lsn)

    def _mark_empty(self, topic: str, envelope: Envelope, lsn: int) -> None:
        value = envelope.render(b"t", NULL, NULL, self._place(envelope, lsn), self._envelopes.now)
        headers = [("v", self._numbering.version_header)]
        for partition in range(self._partitions):
            self._send(Record(topic, b'{"__truncate":%d}' % partition, value, headers, partition))

    def _change_key(self, table: TableEncoder, old: list[Value], new: list[Value], lsn: int) -> None:
        """Publish a change of the key as a delete of the old key and an insert of the new one, with one version."""
        old_key, new_key = table.encode_key(old), table.encode_key(new)
        if table.shape.deferrable_key:
            conflicts, seq = self._key_corrections.of(table), self._numbering.seq
            conflicts.leave(seq, old_key, table.key_values(old))
            conflicts.enter(seq, new_key, table.key_values(new))
        self._remove(table, old, old_key, lsn, ("__debezium.newkey", new_key))
        self._upsert(table, b"c", NULL, new, new_key, lsn, ("__debezium.oldkey", old_key))

    def _upsert(
        self,
        table: TableEncoder,
        op: bytes,
        before: bytes,
        new: list[Value],
        key: bytes,
        lsn: int,
        *headers: tuple[str, bytes],
    ) -> None:
        envelope = self._envelopes.of(table)
        place = self._place(envelope, lsn)
        if table.missing_toast_indexes(new):
            self._hold(table, envelope, op, before, new, key, table.key_values(new), place, *headers)
        else:
            value = envelope.render(op, before, table.encode_row(new), place, self._envelopes.now)
            self._send(Record(table.topic, key, value, [("v", self._numbering.version_header), *headers]))

    def _remove(self, table: TableEncoder, old: list[Value], key: bytes, lsn: int, *headers: tuple[str, bytes]) -> None:
        envelope = self._envelopes.of(table)
        value = envelope.render(b"d", table.encode_row(old), NULL, self._place(envelope, lsn), self._envelopes.now)
        both = [("v", self._numbering.version_header), *headers]
        self._send(Record(table.topic, key, value, both))
        self._send(Record(table.topic, key, None, both))

    # -- events that wait for a re-select --------------------------------------------------------------------

    def correct_keys(self, commit: Commit) -> bool:
        """Hold corrections for some of the keys that several rows passed through. True: more keys may remain.

        Call this before `on_commit`.
        """
        if not self._key_corrections.tables:
            return False
        corrections = self._key_corrections.next_some(self._numbering.seq)
        for seq, keys in corrections:
            self._numbering.skip_to(seq)
            for _, table, key, key_values in keys:
                envelope = self._envelopes.of(table)
                place = self._place(envelope, commit.commit_lsn)
                self._hold(table, envelope, b"u", NULL, None, key, key_values, place)
        return len(corrections) == CORRECTIONS_AT_ONCE

    def _hold(
        self,
        table: TableEncoder,
        envelope: Envelope,
        op: bytes,
        before: bytes,
        values: list[Value] | None,
        key: bytes,
        key_values: tuple[bytes, ...],
        place: Place,
        *headers: tuple[str, bytes],
    ) -> None:
        numbering = self._numbering
        if numbering.is_published or numbering.begin is None:
            return
        xid = numbering.begin.xid
        if table.topic in self._watched:
            self._windows.touch(table.topic, key, xid)
        all_headers = [("v", numbering.version_header), *headers]
        self._queue.hold(Incomplete(table, envelope, xid, op, before, values, key, key_values, place, all_headers))

    def _send(self, record: Record) -> None:
        numbering = self._numbering
        if numbering.is_published:
            return
        if record.topic in self._watched and numbering.begin is not None:
            self._windows.touch(record.topic, record.key, numbering.begin.xid)
        self._queue.put(record)

    # -- tables and numbers ----------------------------------------------------------------------------------

    def _table(self, oid: int, *rows: list[Value] | None) -> TableEncoder:
        table = self.tables.get(oid)
        if table is None:
            raise ProtocolError(f"a change of relation {oid} arrived without its Relation message")
        if any(row is not None and len(row) != len(table.relation.columns) for row in rows):
            raise ProtocolError(f"a row of {table.shape} and its Relation message differ in their number of columns")
        return table

    def _place(self, envelope: Envelope, lsn: int) -> Place:
        numbering = self._numbering
        return Place(lsn, numbering.seq, numbering.next_event(), envelope.next_event())
