"""The progress record: what capture has published, and the facts that capture checks before it continues.

There is one record under one key on `<prefix>.__progress`. Capture writes it in the same Kafka transaction as the
events that it covers, so both are committed or neither. The last committed record is authoritative.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

import msgspec

from cdc.clock import now_ms
from cdc.errors import RefusedError
from cdc.kafka.control_topics import read_last
from cdc.lsn import LSN, Version

replace = msgspec.structs.replace

# 2 added `slot`, `base_from`, `remade` and the state "recovering". A record of format 1 uses none of these.
# 3 added `settings`, `parked`, `pipeline_id` and `commit_lsn`, which an older Tailrace would not keep up to date.
FORMAT = 3
KEY = b"progress"


class LastCommit(NamedTuple):
    """The last commit of the source. `lsn`: the LSN of its commit record."""

    lsn: int
    time_us: int  # since 1970


class Progress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The progress record.

    `position` and `seq`: the version of the last published change. `confirm_lsn`: capture may confirm the slot up to
    this LSN and no further.
    """

    format: int = FORMAT
    # "creating" until the slot exists, "copying" until the initial snapshot is complete, then "streaming". "recovering"
    # during `tailrace recover`.
    state: str
    position: int
    seq: int
    base: int  # added to LSNs, so that versions always increase
    base_from: int = 0  # the first position with this base: LSNs before it may be another server's
    confirm_lsn: int
    # The last commit that the server has sent, even of an empty transaction, and its time in microseconds since 1970.
    # After a restart the server must still have it (`cdc.startup.resumption`). 0: unknown.
    commit_lsn: int = 0
    commit_time_us: int = 0
    messages: int = 0  # the number of published logical messages of the transaction at `position`
    inside_transaction: bool = False  # a source transaction too large for one Kafka transaction is partly published
    # Generated at the first start and never changed, not even by `recover`. Only versions under the same id are
    # comparable. "": an older Tailrace wrote the record, and the next start of capture generates an id.
    pipeline_id: str = ""
    slot: str = ""  # the slot's name; "": an older Tailrace wrote the record
    system_identifier: str
    timeline: int
    publication: str  # oid and xmin of its catalog row: dropping, re-creating or altering it changes this
    publication_tables: dict[str, str]  # oid and xmin of each table's entry in the publication, by the table's oid
    topic_ids: dict[str, str]
    end_offsets: dict[str, list[int]]
    copy: str = ""  # the id of the initial snapshot while it runs
    schemas: dict[str, str] = {}  # topic -> digest of the last record on __schema
    # topic -> its id after a recovery re-created it. A reader of an earlier topic with that name starts at offset 0.
    remade: dict[str, str] = {}
    settings: str = ""  # digest of all settings that affect events (`event_settings`); "": an older Tailrace
    # topic -> the number of the table's parked rows that are not settled; the rows are on __parked. None: not counted
    # yet, because the record is of the first start or of an older Tailrace.
    parked: dict[str, int] | None = None
    written_ms: int = 0
    recoveries: int = 0  # the number of recoveries by `tailrace recover`; `tailrace run` detects a new one by it

    @property
    def version(self) -> Version:
        """The version of the last published change."""
        return Version(self.position, self.seq)

    @property
    def confirmable(self) -> LSN:
        """The LSN up to which capture may confirm the slot."""
        return LSN(self.confirm_lsn)

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return msgspec.json.encode(self)

    def snapshotting_from(self, consistent_point: LSN, copy: str) -> Progress:
        """Return the record for the initial snapshot with this id, at the slot's consistent point."""
        return replace(self.streaming_from(consistent_point), state="copying", copy=copy)

    def streaming_from(self, consistent_point: LSN) -> Progress:
        """Return the record for streaming from the slot's consistent point."""
        point = int(consistent_point)
        return replace(self, state="streaming", copy="", position=self.base + point, confirm_lsn=point)

    def with_base(self, base: int, point: LSN) -> Progress:
        """Return the record with another base, which applies from LSN `point` on."""
        return self if base == self.base else replace(self, base=base, base_from=base + int(point))

    def on_slot(self, slot: str) -> Progress:
        """Return the record with the slot's name."""
        return replace(self, slot=slot)

    def identified(self) -> Progress:
        """Return the record with a pipeline id: its own, or a new one if it has none."""
        return self if self.pipeline_id else replace(self, pipeline_id=new_pipeline_id())

    def creating_again(self) -> Progress:
        """Return the record for a repeated first start."""
        return replace(self, state="creating", copy="", position=0, confirm_lsn=0)

    def advanced(
        self,
        version: Version,
        *,
        confirm_lsn: LSN,
        commit: LastCommit | None = None,
        inside_transaction: bool = False,
        messages: int = 0,
    ) -> Progress:
        """Return the record after publishing up to `version`. `confirm_lsn` and `commit` never go back."""
        # After a restart the server sends earlier commits again.
        last = commit if commit is not None and commit.lsn >= self.commit_lsn else None
        return replace(
            self,
            position=int(version.position),
            seq=version.seq,
            confirm_lsn=max(int(confirm_lsn), self.confirm_lsn),
            commit_lsn=self.commit_lsn if last is None else last.lsn,
            commit_time_us=self.commit_time_us if last is None else last.time_us,
            inside_transaction=inside_transaction,
            messages=messages,
            written_ms=now_ms(),
        )

    def with_topic(self, name: str, topic_id: str, partitions: int) -> Progress:
        """Return the record with a new, empty table topic."""
        return replace(
            self,
            topic_ids={**self.topic_ids, name: topic_id},
            end_offsets={**self.end_offsets, name: [0] * partitions},
        )

    def with_message_topic(self, name: str, topic_id: str) -> Progress:
        """Return the record with the id of a topic of logical messages, whose end offsets are not recorded."""
        return replace(self, topic_ids={**self.topic_ids, name: topic_id})

    def with_publication(self, identity: str, tables: dict[str, str]) -> Progress:
        """Return the record with the publication's oid and xmin, and those of its entries."""
        return replace(self, publication=identity, publication_tables=tables)

    def on_timeline(self, timeline: int) -> Progress:
        """Return the record with the server's timeline."""
        return replace(self, timeline=timeline)

    def with_end_offsets(self, ends: dict[str, list[int]]) -> Progress:
        """Return the record with new end offsets of these topics."""
        return replace(self, end_offsets={**self.end_offsets, **ends}) if ends else self

    def with_settings(self, digest: str) -> Progress:
        """Return the record with the settings digest."""
        return replace(self, settings=digest)

    def with_parked(self, counts: dict[str, int]) -> Progress:
        """Return the record with the numbers of parked rows by topic."""
        return replace(self, parked=counts)

    def with_schema(self, topic: str, digest: str) -> Progress:
        """Return the record with the digest of a topic's last schema record."""
        return replace(self, schemas={**self.schemas, topic: digest})


def new_pipeline_id() -> str:
    """Return a random pipeline id."""
    return uuid.uuid4().hex


class UnreadableProgressError(RefusedError):
    """The progress record exists but is not a record that Tailrace has written."""


class _Format(msgspec.Struct):
    format: int


def decode_progress(data: bytes) -> Progress:
    """Decode a progress record. An older format is converted to the present one; a newer format is refused."""
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found > FORMAT:
            raise RefusedError(
                f"The progress record has format {found}; this Tailrace reads formats up to {FORMAT}.",
                remedy="Run the newer Tailrace that wrote it.",
            )
        return replace(msgspec.json.decode(data, type=Progress), format=FORMAT)
    except msgspec.DecodeError as error:
        raise UnreadableProgressError(
            f"The progress record cannot be read: {error}.", remedy="Restore the topic, or run: tailrace recover"
        ) from error


def read_progress(
    options: dict[str, str], topic: str, *, timeout_seconds: float = 30, decided: bool = False
) -> Progress | None:
    """Return the last committed progress record, or None if there is none.

    `decided`: the caller has fenced capture and continues from this record, so the read must not miss any record.
    """
    data = read_last(options, topic, KEY, timeout_seconds=timeout_seconds, decided=decided)
    return None if data is None else decode_progress(data)
