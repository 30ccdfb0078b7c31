"""From pgoutput messages to Kafka records: the version of every change, and the rules of docs/events.md.

No I/O: records go to `emit`; what must be completed by a query first (an update that left a TOASTed value out, a key
that several rows passed through) is collected in `held`, and from then on everything queues behind it, so order stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cdc.envelope import Envelope, Headers, Record, clock
from cdc.errors import ProtocolError
from cdc.lsn import LSN, Version
from cdc.messages import UNCHANGED, Begin, Commit, Delete, Insert, Truncate, Update, Value
from cdc.relations import Table

Emit = Callable[[str, bytes, "bytes | None", Headers, int], None]

_NULL = b"null"


@dataclass(slots=True, kw_only=True)
class Incomplete:
    """An event that waits for a query: `values` has holes, or is None when the whole row is asked for."""

    table: Table
    envelope: Envelope
    xid: int
    op: bytes
    before: bytes
    values: list[Value] | None
    key: bytes
    key_values: tuple[bytes, ...]
    lsn: int
    seq: int
    order: int
    table_order: int
    headers: Headers

    def render(self, op: bytes, after: bytes, reselected: list[str]) -> bytes:
        return self.envelope.render(
            op=op,
            before=self.before,
            after=after,
            lsn=self.lsn,
            seq=self.seq,
            order=self.order,
            table_order=self.table_order,
            now=clock(),
            reselected=reselected,
        )


@dataclass(slots=True)
class _KeyTraffic:
    """Which keys of a table with a deferrable key were entered and left in this transaction (hashes, to stay small)."""

    entered: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    ambiguous: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)


class Changes:
    """Feed it messages in stream order; it numbers, renders and emits."""

    def __init__(
        self, *, pipeline: str, database: str, base: int, resume_after: Version, emit: Emit, partitions: int
    ) -> None:
        self.tables: dict[int, Table] = {}
        self.held: list[Record | Incomplete] = []
        self.now = clock()
        self.begin: Begin | None = None
        self.position = resume_after.position
        self.seq = resume_after.seq
        self._pipeline = pipeline
        self._database = database
        self._base = base
        self._resume_after = resume_after
        self._emit = emit
        self._partitions = partitions
        self._previous_commit = LSN(0)
        self._order = 0
        self._table_orders: dict[int, int] = {}
        self._envelopes: dict[int, Envelope] = {}
        self._version_head = b""
        self._skip_through = 0
        self._key_traffic: dict[int, _KeyTraffic] = {}

    @property
    def version(self) -> Version:
        """Everything up to here has been handed to `emit` or `held`."""
        return Version(self.position, self.seq)

    def on_begin(self, message: Begin) -> None:
        if self.begin is not None:
            raise ProtocolError(f"Begin at {message.final_lsn} inside the transaction of {self.begin.final_lsn}")
        self.begin = message
        self.position = self._base + message.final_lsn
        self.seq = 0
        self._order = 0
        self._table_orders.clear()
        self._envelopes.clear()
        self._version_head = b"%016x." % self.position
        if self.position == self._resume_after.position:
            self._skip_through = self._resume_after.seq
        else:  # every one of its changes is below what was published, or none is
            self._skip_through = -1 if self.position > self._resume_after.position else 1 << 62

    def on_commit(self, message: Commit) -> None:
        if self.begin is None:
            raise ProtocolError(f"Commit at {message.commit_lsn} without a Begin")
        self._settle_ambiguous_keys(message)
        self.begin = None
        self._previous_commit = message.commit_lsn

    def on_relation(self, table: Table) -> None:
        self.tables[table.relation.oid] = table
        self._envelopes.pop(table.relation.oid, None)

    def on_insert(self, message: Insert, lsn: int) -> None:
        table = self._table(message.relation_oid)
        self.seq += 1
        key = table.encode_key(message.new)
        if table.deferrable_key:
            self._note_key(table, key, message.new, entered=True)
        self._upsert(table, b"c", _NULL, message.new, key, lsn)

    def on_update(self, message: Update, lsn: int) -> None:
        table = self._table(message.relation_oid)
        self.seq += 1
        old, new = message.old, message.new
        before = _NULL
        if old is not None:
            if message.old_is_whole:
                # The new row says "unchanged" even though the old one has the value: the old row is the source.
                if UNCHANGED in new:
                    new = [old[i] if value is UNCHANGED else value for i, value in enumerate(new)]
                before = table.encode_row(old)
            if any(old[i] != new[i] for i in table.key_indexes):
                self._change_key(table, old, new, before, lsn)
                return
        self._upsert(table, b"u", before, new, table.encode_key(new), lsn)

    def on_delete(self, message: Delete, lsn: int) -> None:
        table = self._table(message.relation_oid)
        self.seq += 1
        key = table.encode_key(message.old)
        if table.deferrable_key:
            self._note_key(table, key, message.old, entered=False)
        self._remove(table, table.encode_row(message.old), key, lsn)

    def on_truncate(self, message: Truncate, lsn: int) -> None:
        """One marker per partition and table, all under the version of this one message."""
        self.seq += 1
        for oid in message.relation_oids:
            table = self._table(oid)
            order, table_order = self._count(oid)
            value = self._envelope(table).render(
                op=b"t",
                before=_NULL,
                after=_NULL,
                lsn=lsn,
                seq=self.seq,
                order=order,
                table_order=table_order,
                now=self.now,
            )
            for partition in range(self._partitions):
                key = b'{"__truncate":%d}' % partition
                self._send(table.topic, key, value, self._headers(), partition)

    def _change_key(self, table: Table, old: list[Value], new: list[Value], before: bytes, lsn: int) -> None:
        """A delete of the old key and an insert of the new one; both halves share the version."""
        old_key, new_key = table.encode_key(old), table.encode_key(new)
        if table.deferrable_key:
            self._note_key(table, old_key, old, entered=False)
            self._note_key(table, new_key, new, entered=True)
        self._remove(
            table,
            before if before is not _NULL else table.encode_row(old),
            old_key,
            lsn,
            ("__debezium.newkey", new_key),
        )
        self._upsert(table, b"c", _NULL, new, new_key, lsn, ("__debezium.oldkey", old_key))

    def _upsert(
        self,
        table: Table,
        op: bytes,
        before: bytes,
        new: list[Value],
        key: bytes,
        lsn: int,
        *more_headers: tuple[str, bytes],
    ) -> None:
        order, table_order = self._count(table.relation.oid)
        headers: Headers = [("v", self._version_head + b"%08x" % self.seq), *more_headers]
        if UNCHANGED not in new:
            value = self._envelope(table).template % (
                before,
                table.encode_row(new),
                lsn,
                lsn,
                self.seq,
                b"",
                order,
                table_order,
                op,
                self.now,
            )
            self._send(table.topic, key, value, headers, -1)
        elif self.seq > self._skip_through:
            self.held.append(
                self._incomplete(table, op, before, new, key, table.key_values(new), lsn, order, table_order, headers)
            )

    def _remove(self, table: Table, before: bytes, key: bytes, lsn: int, *more_headers: tuple[str, bytes]) -> None:
        order, table_order = self._count(table.relation.oid)
        value = self._envelope(table).render(
            op=b"d",
            before=before,
            after=_NULL,
            lsn=lsn,
            seq=self.seq,
            order=order,
            table_order=table_order,
            now=self.now,
        )
        self._send(table.topic, key, value, [*self._headers(), *more_headers], -1)
        self._send(table.topic, key, None, self._headers(), -1)

    def _send(self, topic: str, key: bytes, value: bytes | None, headers: Headers, partition: int) -> None:
        if self.seq <= self._skip_through:
            return
        if self.held:
            self.held.append(Record(topic, key, value, headers, partition))
        else:
            self._emit(topic, key, value, headers, partition)

    def _note_key(self, table: Table, key: bytes, row: list[Value], *, entered: bool) -> None:
        traffic = self._key_traffic.setdefault(table.relation.oid, _KeyTraffic())
        mine, other = (traffic.entered, traffic.left) if entered else (traffic.left, traffic.entered)
        digest = hash(key)
        mine.add(digest)
        if digest in other:
            traffic.ambiguous[key] = table.key_values(row)

    def _settle_ambiguous_keys(self, commit: Commit) -> None:
        """pgoutput does not say who holds a key that was both entered and left: ask, and publish what is there.

        These corrections get the number after the transaction's last change, so they beat all of its events.
        """
        if not self._key_traffic:
            return
        self.seq += 1
        for oid, traffic in self._key_traffic.items():
            table = self._table(oid)
            for key, key_values in traffic.ambiguous.items():
                order, table_order = self._count(oid)
                if self.seq > self._skip_through:
                    self.held.append(
                        self._incomplete(
                            table,
                            b"u",
                            _NULL,
                            None,
                            key,
                            key_values,
                            commit.commit_lsn,
                            order,
                            table_order,
                            self._headers(),
                        )
                    )
        self._key_traffic.clear()

    def _incomplete(
        self,
        table: Table,
        op: bytes,
        before: bytes,
        values: list[Value] | None,
        key: bytes,
        key_values: tuple[bytes, ...],
        lsn: int,
        order: int,
        table_order: int,
        headers: Headers,
    ) -> Incomplete:
        assert self.begin is not None  # noqa: S101  # _count has checked it
        return Incomplete(
            table=table,
            envelope=self._envelope(table),
            xid=self.begin.xid,
            op=op,
            before=before,
            values=values,
            key=key,
            key_values=key_values,
            lsn=lsn,
            seq=self.seq,
            order=order,
            table_order=table_order,
            headers=headers,
        )

    def _table(self, oid: int) -> Table:
        table = self.tables.get(oid)
        if table is None:
            raise ProtocolError(f"a change of relation {oid} came without its Relation message")
        return table

    def _count(self, oid: int) -> tuple[int, int]:
        self._order += 1
        self._table_orders[oid] = table_order = self._table_orders.get(oid, 0) + 1
        return self._order, table_order

    def _envelope(self, table: Table) -> Envelope:
        envelope = self._envelopes.get(table.relation.oid)
        if envelope is None:
            if self.begin is None:
                raise ProtocolError(f"a change of {table.name} came outside a transaction")
            envelope = self._envelopes[table.relation.oid] = Envelope(
                table,
                self.begin,
                pipeline=self._pipeline,
                database=self._database,
                position=self.position,
                previous_commit=self._previous_commit,
            )
        return envelope

    def _headers(self) -> Headers:
        return [("v", self._version_head + b"%08x" % self.seq)]
