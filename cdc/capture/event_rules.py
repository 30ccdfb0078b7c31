"""Turns pgoutput messages into versioned Kafka records, by the rules of docs/reference/events.md.

The module does no I/O. Records go to `emit`. Some events need a query first: an update that left out a TOASTed value,
or a key that several rows passed through. Those go to `held`, and all later records queue behind them, which keeps the
order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import merge
from itertools import groupby, islice

from cdc.capture.key_conflicts import Ambiguous, KeyConflicts
from cdc.encoding.envelope import NULL, POSTGRES_EPOCH_US, Envelope, Place, clock, envelope_tail
from cdc.encoding.incomplete_event import Held, Incomplete
from cdc.encoding.row_runs import ROW_AT
from cdc.encoding.table_encoder import Shape, TableEncoder
from cdc.errors import ProtocolError
from cdc.kafka.record import MESSAGE_HEADER, RECORD_BYTES, Emit, Headers, Record
from cdc.lsn import LSN, Version
from cdc.pgoutput.decoder import HEAD_BYTES
from cdc.pgoutput.messages import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    Truncate,
    Update,
    Value,
)
from cdc.snapshot.incremental.window import ChunkWindows

_SKIP_NOTHING, _SKIP_ALL = -1, 1 << 62
# How many corrections are made before the caller checks the limits of the batch.
_CORRECTIONS_AT_ONCE = 256


class EventRules:
    """Numbers the changes, renders the events and emits the records. Call it with the messages in stream order."""

    def __init__(
        self,
        *,
        pipeline: str,
        database: str,
        base: int,
        resume_after: Version,
        messages_published: int = 0,
        emit: Emit,
        partitions: int,
    ) -> None:
        self.tables: dict[int, TableEncoder] = {}
        self.gone: set[int] = set()  # relations whose tables no longer exist at the source
        self.held: Held = []
        self.held_bytes = 0  # the approximate size of `held` in memory
        self.now = clock()
        self.begin: Begin | None = None
        self.position, self.seq = resume_after
        self._pipeline = pipeline
        self._database = database
        self.base = base
        self._resume_after = resume_after
        self._messages_published = messages_published  # of the transaction at resume_after
        self.messages = messages_published
        self.is_behind = True  # the stream has not reached the transaction at resume_after
        self.emit = emit
        self._partitions = partitions
        self._previous_commit_end: LSN | None = None
        self._origin: Origin | None = None
        self._order = 0
        self._envelopes: dict[TableEncoder, Envelope] = {}
        self._key_traffic: dict[TableEncoder, KeyConflicts] = {}
        self._corrections: Iterator[tuple[int, Iterator[Ambiguous]]] | None = None  # the remaining ones
        self._changes_in_all = 0  # how many changes the transaction has, without its corrections
        self._numbers_unused = 0
        self._version_head = b""
        self._skip_through = _SKIP_NOTHING
        # First 8 bytes of a row message (kind, relation, kind of tuple, column count) -> arguments of the fast path.
        self._quick: dict[bytes, tuple[TableEncoder, bytes, bool]] = {}
        self.windows = ChunkWindows()
        self._watched: frozenset[str] = frozenset()

    @property
    def version(self) -> Version:
        """The version up to which all changes went to `emit` or `held`, in this session or an earlier one.

        It does not decrease while the server sends published transactions again.
        """
        return max(Version(self.position, self.seq), self._resume_after)

    @property
    def count(self) -> int:
        """How many changes and corrections of the current transaction have a number."""
        return self.seq - self._numbers_unused

    @property
    def replaying(self) -> bool:
        """Whether the next change was published before the restart."""
        return Version(self.position, self.seq) < self._resume_after

    # -- the transaction -------------------------------------------------------------------------------------

    def on_begin(self, message: Begin) -> None:
        if self.begin is not None:
            raise ProtocolError(f"Begin at {message.final_lsn} inside the transaction of {self.begin.final_lsn}")
        self.begin = message
        self.windows.streamed(message.xid)
        self._origin = None
        self.position = self.base + message.final_lsn
        self.seq = 0
        self.messages = 0
        self._order = 0
        self._numbers_unused = 0
        self._version_head = b"%016x." % self.position
        self.is_behind = self.position < self._resume_after.position
        if self.position == self._resume_after.position:
            self._skip_through = self._resume_after.seq
        else:
            self._skip_through = _SKIP_NOTHING if self.position > self._resume_after.position else _SKIP_ALL

    def on_commit(self, message: Commit) -> None:
        if self.begin is None:
            raise ProtocolError(f"Commit at {message.commit_lsn} without a Begin")
        while self.correct_keys(message):
            pass
        self.begin = None
        self._envelopes.clear()  # so that a row outside a transaction cannot reuse this transaction's envelope
        self._previous_commit_end = message.end_lsn

    def on_origin(self, message: Origin) -> None:
        """Note the replication origin of a transaction that this server applied from another. It follows the Begin."""
        self._origin = message

    def on_table(self, table: TableEncoder) -> None:
        """Register a table after its Relation message: a new table, or one whose columns have changed."""
        old = self.tables.get(table.relation.oid)
        self.tables[table.relation.oid] = table
        if old in self._envelopes:  # the table was altered inside a transaction: keep counting its events
            self._envelope(table).table_order = self._envelopes.pop(old).table_order
        if old in self._key_traffic:
            self._key_traffic[table] = self._key_traffic.pop(old)
        self._quick = {head: way for head, way in self._quick.items() if way[0] is not old}
        self._quick.update(self._ways(table))

    def _ways(self, table: TableEncoder) -> dict[bytes, tuple[TableEncoder, bytes, bool]]:
        """Return the fast path's message heads of a table: none while capture must note the keys of its rows."""
        if table.shape.deferrable_key or table.topic in self._watched:
            return {}
        tag, count = table.relation.oid.to_bytes(4, "big"), len(table.relation.columns).to_bytes(2, "big")
        return {
            b"I" + tag + b"N" + count: (table, b"c", False),
            b"U" + tag + b"N" + count: (table, b"u", False),
            b"U" + tag + b"O" + count: (table, b"u", True),
        }

    def on_table_gone(self, oid: int) -> None:
        """Handle the Relation message of a table that is no longer published: number its rows, publish nothing."""
        self.gone.add(oid)
        old = self.tables.pop(oid, None)
        self._quick = {head: way for head, way in self._quick.items() if way[0] is not old}

    # -- incremental snapshots -------------------------------------------------------------------------------

    @property
    def is_replaying_snapshots(self) -> bool:
        """Whether the snapshot rows of this position were published before the restart. (Their seq is 0.)"""
        return self._skip_through >= 0

    @property
    def commit_ms(self) -> int:
        return 0 if self.begin is None else (self.begin.commit_time_us + POSTGRES_EPOCH_US) // 1000

    def watch_windows(self) -> None:
        """Update the set of tables whose keys capture notes. Call this after every change of `windows`."""
        self._watched = self.windows.topics
        self._quick = {head: way for table in self.tables.values() for head, way in self._ways(table).items()}

    def on_snapshot_row(self, record: Record) -> None:
        self._queue(record)

    # -- rows ------------------------------------------------------------------------------------------------

    def take_rows(self, items: list[bytes], at: int, end: int) -> int:
        """Publish the inserts and updates of whole rows from items[at] on: the fast path.

        Returns the index at which it stopped: `end`, or the first message that the fast path cannot handle. The caller
        decodes that message and calls the matching `on_…` method.
        """
        while at < end:
            way = self._quick.get(items[at][HEAD_BYTES:ROW_AT])
            if way is None:
                return at
            stopped_at = self._take_run(*way, items, at, end)
            if stopped_at == at:
                return at
            at = stopped_at
        return at

    def _take_run(
        self, table: TableEncoder, op: bytes, has_old_row: bool, items: list[bytes], at: int, end: int
    ) -> int:
        envelope = self._envelope(table)
        at, self.seq, self._order, envelope.table_order = table.run.take(
            items,
            at,
            end,
            has_old_row,
            envelope.parts,
            envelope_tail(op, self.now),
            self._version_head,
            table.topic,
            self._hold_record if self.held else self.emit,
            self._skip_through,
            self.seq,
            self._order,
            envelope.table_order,
        )
        return at

    def _hold_record(self, topic: str, key: bytes, value: bytes | None, headers: Headers, partition: int) -> None:
        self._append(Record(topic, key, value, headers, partition))

    def on_row(self, message: Insert | Update | Delete, lsn: int) -> None:
        if self.begin is None:
            raise ProtocolError(f"a row of relation {message.relation_oid} arrived outside a transaction")
        if message.relation_oid in self.gone:
            self.seq += 1  # capture numbers the change but does not publish it
        elif isinstance(message, Insert):
            self.on_insert(message, lsn)
        elif isinstance(message, Update):
            self.on_update(message, lsn)
        else:
            self.on_delete(message, lsn)

    def on_insert(self, message: Insert, lsn: int) -> None:
        table = self._table(message.relation_oid, message.new)
        self.seq += 1
        key = table.encode_key(message.new)
        if table.shape.deferrable_key:
            self._traffic(table).enter(self.seq, key, table.key_values(message.new))
        self._upsert(table, b"c", NULL, message.new, key, lsn)

    def on_update(self, message: Update, lsn: int) -> None:
        table = self._table(message.relation_oid, message.new, message.old)
        self.seq += 1
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
        self.seq += 1
        key = table.encode_key(message.old)
        if table.shape.deferrable_key:
            self._traffic(table).leave(self.seq, key, table.key_values(message.old))
        self._remove(table, message.old, key, lsn)

    def on_truncate(self, message: Truncate, lsn: int, partial: Collection[str] = ()) -> None:
        """Write one truncate marker per topic and partition, all with the version of this one message.

        `partial`: topics of partitioned tables of which only some partitions were truncated. They get no marker.
        """
        self.seq += 1
        tables = {table.topic: table for table in map(self._table, message.relation_oids)}
        for topic, table in tables.items():
            if topic not in partial:
                self._mark_empty(table.topic, self._envelope(table), lsn)

    def on_gone(self, shape: Shape, lsn: int) -> None:
        """Write truncate markers for a table that was dropped or renamed: its topic's rows no longer exist."""
        self.seq += 1
        self._mark_empty(shape.topic, self._new_envelope(shape), lsn)

    def on_message(self, message: LogicalMessage, topic: str, *, is_shared: bool = False) -> None:
        """Publish a logical message of the user. It gets no seq, but capture counts it in order to resume after it.

        `is_shared`: messages with other names use the same topic, so a header carries the name.
        """
        if message.transactional:
            self.messages += 1
            position = self.position
            published = self.messages <= self._messages_published if self._skip_through >= 0 else False
            published = published or self._skip_through == _SKIP_ALL
        else:  # its position is its own LSN in the WAL, not that of a commit
            position = self.base + message.lsn
            published = position <= self._resume_after.position
            if position > self.position:
                self.position, self.seq, self.messages = position, 0, 0
        if published:
            return
        key = b'{"position":%d,"message":%d}' % (position, self.messages if message.transactional else 0)
        kind = b"true" if message.transactional else b"false"
        version = b"%016x.%08x" % (position, self.seq if message.transactional else 0)
        headers = [("v", version), (MESSAGE_HEADER, kind), ("lsn", b"%d" % message.lsn)]
        if is_shared:
            headers.append(("name", message.prefix.encode()))
        self._deliver(Record(topic, key, message.content, headers, 0))

    def _mark_empty(self, topic: str, envelope: Envelope, lsn: int) -> None:
        value = envelope.render(b"t", NULL, NULL, self._place(envelope, lsn), self.now)
        for partition in range(self._partitions):
            self._send(Record(topic, b'{"__truncate":%d}' % partition, value, self._headers(), partition))

    def _change_key(self, table: TableEncoder, old: list[Value], new: list[Value], lsn: int) -> None:
        """Publish a change of the key as a delete of the old key and an insert of the new one, with one version."""
        old_key, new_key = table.encode_key(old), table.encode_key(new)
        if table.shape.deferrable_key:
            self._traffic(table).leave(self.seq, old_key, table.key_values(old))
            self._traffic(table).enter(self.seq, new_key, table.key_values(new))
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
        envelope = self._envelope(table)
        place = self._place(envelope, lsn)
        if table.missing_toast_indexes(new):
            self._hold(table, envelope, op, before, new, key, table.key_values(new), place, *headers)
        else:
            value = envelope.render(op, before, table.encode_row(new), place, self.now)
            self._send(Record(table.topic, key, value, self._headers(*headers)))

    def _remove(self, table: TableEncoder, old: list[Value], key: bytes, lsn: int, *headers: tuple[str, bytes]) -> None:
        envelope = self._envelope(table)
        value = envelope.render(b"d", table.encode_row(old), NULL, self._place(envelope, lsn), self.now)
        self._send(Record(table.topic, key, value, self._headers(*headers)))
        self._send(Record(table.topic, key, None, self._headers(*headers)))

    # -- events that wait for a re-select --------------------------------------------------------------------

    def correct_keys(self, commit: Commit) -> bool:
        """Hold corrections for some of the keys that several rows passed through. True: more keys remain.

        Call this before `on_commit`. In a transaction of n changes, the correction of the key that change k made
        ambiguous gets seq n + k. So corrections have higher versions than all events of the transaction. A correction
        has the same seq each time the server sends the transaction, even if other tables no longer exist by then. And
        capture can split corrections over several Kafka transactions, as it does with changes.
        """
        if not self._key_traffic:
            return False
        if self._corrections is None:
            by_table = [traffic.ambiguous(table) for table, traffic in self._key_traffic.items()]
            self._corrections = groupby(merge(*by_table, key=_number), key=_number)
            self._changes_in_all = self.seq
        some = 0
        for number, keys in islice(self._corrections, _CORRECTIONS_AT_ONCE):
            some += 1
            self._numbers_unused += self._changes_in_all + number - self.seq - 1
            self.seq = self._changes_in_all + number
            for _, table, key, key_values in keys:
                envelope = self._envelope(table)
                place = self._place(envelope, commit.commit_lsn)
                self._hold(table, envelope, b"u", NULL, None, key, key_values, place)
        if some == _CORRECTIONS_AT_ONCE:
            return True
        self._corrections = None
        self._key_traffic.clear()
        return False

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
        if self.seq <= self._skip_through or self.begin is None:
            return
        xid = self.begin.xid
        if table.topic in self._watched:
            self.windows.touch(table.topic, key, xid)
        self.held.append(
            Incomplete(table, envelope, xid, op, before, values, key, key_values, place, self._headers(*headers))
        )
        sizes = [len(value) for value in values or () if isinstance(value, bytes)]
        self.held_bytes += RECORD_BYTES + len(before) + sum(sizes)

    def take_held(self) -> Held:
        """Return and clear the held events. The caller completes and publishes them before any other record."""
        held, self.held, self.held_bytes = self.held, [], 0
        return held

    # -- records, tables and envelopes -----------------------------------------------------------------------

    def _send(self, record: Record) -> None:
        if self.seq > self._skip_through:
            self._deliver(record)

    def _deliver(self, record: Record) -> None:
        if record.topic in self._watched and self.begin is not None:
            self.windows.touch(record.topic, record.key, self.begin.xid)
        self._queue(record)

    def _queue(self, record: Record) -> None:
        if self.held:
            self._append(record)
        else:
            self.emit(*record)

    def _append(self, record: Record) -> None:
        self.held.append(record)
        self.held_bytes += RECORD_BYTES + len(record.value or b"")

    def _table(self, oid: int, *rows: list[Value] | None) -> TableEncoder:
        table = self.tables.get(oid)
        if table is None:
            raise ProtocolError(f"a change of relation {oid} arrived without its Relation message")
        if any(row is not None and len(row) != len(table.relation.columns) for row in rows):
            raise ProtocolError(f"a row of {table.shape} and its Relation message differ in their number of columns")
        return table

    def _traffic(self, table: TableEncoder) -> KeyConflicts:
        return self._key_traffic.setdefault(table, KeyConflicts())

    def _place(self, envelope: Envelope, lsn: int) -> Place:
        self._order += 1
        envelope.table_order += 1
        return Place(lsn, self.seq, self._order, envelope.table_order)

    def _envelope(self, table: TableEncoder) -> Envelope:
        envelope = self._envelopes.get(table)
        if envelope is None:
            envelope = self._envelopes[table] = self._new_envelope(table.shape)
        return envelope

    def _new_envelope(self, shape: Shape) -> Envelope:
        if self.begin is None:
            raise ProtocolError(f"a change of {shape} arrived outside a transaction")
        return Envelope(
            shape,
            self.begin,
            pipeline=self._pipeline,
            database=self._database,
            position=self.position,
            previous_commit_end=self._previous_commit_end,
            origin=self._origin,
        )

    def _headers(self, *more: tuple[str, bytes]) -> Headers:
        return [("v", b"%b%08x" % (self._version_head, self.seq)), *more]


def _number(ambiguous: Ambiguous) -> int:
    return ambiguous.number
