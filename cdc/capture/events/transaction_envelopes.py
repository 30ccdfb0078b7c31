"""The envelopes of one transaction: one for each table with changes, so that their constant parts are rendered once."""

from __future__ import annotations

from cdc.capture.events.numbering import Numbering
from cdc.encoding.envelope import Envelope, envelope_tail
from cdc.encoding.table_encoder import Shape, TableEncoder
from cdc.errors import ProtocolError
from cdc.lsn import LSN
from cdc.pgoutput.messages import Commit, Origin


class TransactionEnvelopes:
    """Renders the envelopes. Call `on_begin` and `on_commit` before and after the changes of each transaction.

    `now`: the envelope's time stamps. `tails`: the last part of an insert's or update's event, by operation.
    """

    def __init__(self, numbering: Numbering, *, pipeline: str, database: str, now: bytes) -> None:
        self._numbering = numbering
        self._pipeline = pipeline
        self._database = database
        self._previous_commit_end: LSN | None = None
        self._origin: Origin | None = None
        self._envelopes: dict[TableEncoder, Envelope] = {}
        self.now = now
        self.tails = _tails(now)

    def set_time(self, now: bytes) -> None:
        self.now = now
        self.tails = _tails(now)

    def on_begin(self) -> None:
        self._origin = None

    def on_origin(self, message: Origin) -> None:
        self._origin = message

    def on_commit(self, message: Commit) -> None:
        self._envelopes.clear()  # so that a row outside a transaction cannot reuse this transaction's envelope
        self._previous_commit_end = message.end_lsn

    def of(self, table: TableEncoder) -> Envelope:
        """Return the envelope of a table's changes in this transaction."""
        envelope = self._envelopes.get(table)
        if envelope is None:
            envelope = self._envelopes[table] = self.new(table.shape)
        return envelope

    def replace(self, old: TableEncoder, new: TableEncoder) -> None:
        """Continue the count of a table's events after its columns have changed inside the transaction."""
        if old in self._envelopes:
            self._envelopes[new] = self.new(new.shape, table_order=self._envelopes.pop(old).table_order)

    def new(self, shape: Shape, *, table_order: int = 0) -> Envelope:
        """Return an envelope for a table that has no other changes in this transaction."""
        begin = self._numbering.begin
        if begin is None:
            raise ProtocolError(f"a change of {shape} arrived outside a transaction")
        return Envelope(
            shape,
            begin,
            pipeline=self._pipeline,
            database=self._database,
            position=self._numbering.position,
            previous_commit_end=self._previous_commit_end,
            origin=self._origin,
            table_order=table_order,
        )


def _tails(now: bytes) -> dict[bytes, bytes]:
    return {op: envelope_tail(op, now) for op in (b"c", b"u")}
