"""The recovery record: what has been published, and everything that must still be so before more may be.

One record under one key on `<prefix>.__progress`, written inside the same Kafka transaction as the events it covers:
both are there, or neither. The last committed one is the truth about capture.
"""

from __future__ import annotations

import time
import uuid
from typing import NamedTuple

import msgspec

from cdc.errors import RefusedError
from cdc.kafka.control_topics import read_last
from cdc.lsn import LSN, Version

replace = msgspec.structs.replace

# 2: `slot`, `base_from`, `remade` and the state "recovering". A record of format 1 is one where none of that was used.
# 3: `settings`, `parked`, `pipeline_id` and `commit_lsn`, which an older Tailrace would not keep up to date.
FORMAT = 3
KEY = b"progress"


class LastCommit(NamedTuple):
    """`lsn`: of its commit record."""

    lsn: int
    time_us: int  # since 1970


class Progress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`position`/`seq` is the version published up to; the slot may be confirmed up to `confirm_lsn`, no further."""

    format: int = FORMAT
    # "creating" until the slot exists, "copying" until the first copy is through, then "streaming"; "recovering" while
    # `tailrace recover` is half-way
    state: str
    position: int
    seq: int
    base: int  # added to LSNs, so that versions rise for ever
    base_from: int = 0  # the position from which on this base holds: before it, LSNs were perhaps another server's
    confirm_lsn: int
    # The last commit that the server has sent, even an empty one, and its time in microseconds since 1970. After a
    # restart it must still be there (`cdc.startup.resumption`). 0: not known.
    commit_lsn: int = 0
    commit_time_us: int = 0
    messages: int = 0  # how many logical messages of the transaction at `position` are published
    inside_transaction: bool = False  # a source transaction too big for one Kafka transaction is half published
    # Made at the first start and kept for the pipeline's life, through `recover` too: only versions under the same id
    # can be compared. "" where an older Tailrace wrote the record; the next start of capture makes one then.
    pipeline_id: str = ""
    slot: str = ""  # its name; "" where an older Tailrace wrote the record
    system_identifier: str
    timeline: int
    publication: str  # its catalog row's oid and xmin: dropping, re-creating or altering it changes this
    publication_tables: dict[str, str]  # the same for each table's entry in it
    topic_ids: dict[str, str]
    end_offsets: dict[str, list[int]]
    copy: str = ""  # the id of the first copy, while that is under way
    schemas: dict[str, str] = {}  # topic -> digest of the last record on __schema
    # topic -> the id that it got when a recovery made it anew: whoever has read an earlier one begins at its beginning
    remade: dict[str, str] = {}
    settings: str = ""  # digest of all that the config says about events (`table_settings`); "": an older Tailrace
    # topic -> how many of the table's rows capture has parked and not settled; the rows are on __parked. None: that was
    # not counted yet, by the first start or by an older Tailrace
    parked: dict[str, int] | None = None
    written_ms: int = 0
    recoveries: int = 0  # how often `tailrace recover` has recovered the pipeline: `tailrace run` notices a new one

    @property
    def version(self) -> Version:
        return Version(self.position, self.seq)

    @property
    def confirmable(self) -> LSN:
        return LSN(self.confirm_lsn)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def copying_from(self, consistent_point: LSN, copy: str) -> Progress:
        return replace(self.streaming_from(consistent_point), state="copying", copy=copy)

    def streaming_from(self, consistent_point: LSN) -> Progress:
        point = int(consistent_point)
        return replace(self, state="streaming", copy="", position=self.base + point, confirm_lsn=point)

    def with_base(self, base: int, point: LSN) -> Progress:
        """From this LSN on."""
        return self if base == self.base else replace(self, base=base, base_from=base + int(point))

    def on_slot(self, slot: str) -> Progress:
        return replace(self, slot=slot)

    def identified(self) -> Progress:
        return self if self.pipeline_id else replace(self, pipeline_id=new_pipeline_id())

    def creating_again(self) -> Progress:
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
        # What is sent again after a restart comes before the last one.
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
            written_ms=time.time_ns() // 1_000_000,
        )

    def with_topic(self, name: str, topic_id: str, partitions: int) -> Progress:
        return replace(
            self,
            topic_ids={**self.topic_ids, name: topic_id},
            end_offsets={**self.end_offsets, name: [0] * partitions},
        )

    def with_message_topic(self, name: str, topic_id: str) -> Progress:
        return replace(self, topic_ids={**self.topic_ids, name: topic_id})

    def with_publication(self, identity: str, tables: dict[str, str]) -> Progress:
        return replace(self, publication=identity, publication_tables=tables)

    def on_timeline(self, timeline: int) -> Progress:
        return replace(self, timeline=timeline)

    def with_end_offsets(self, ends: dict[str, list[int]]) -> Progress:
        return replace(self, end_offsets={**self.end_offsets, **ends}) if ends else self

    def with_settings(self, digest: str) -> Progress:
        return replace(self, settings=digest)

    def with_parked(self, counts: dict[str, int]) -> Progress:
        return replace(self, parked=counts)

    def with_schema(self, topic: str, digest: str) -> Progress:
        return replace(self, schemas={**self.schemas, topic: digest})


def new_pipeline_id() -> str:
    return uuid.uuid4().hex


class UnreadableProgressError(RefusedError):
    """There is a record, and it is none that any Tailrace has written."""


class _Format(msgspec.Struct):
    format: int


def decode_progress(data: bytes) -> Progress:
    """An older record is read as what it means now; one of a newer Tailrace is refused instead of guessed at."""
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found > FORMAT:
            raise RefusedError(
                f"The progress record has format {found}; this Tailrace knows up to {FORMAT}.",
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
    """The last committed record, or None where there is none.

    `decided`: for whoever has fenced capture, and goes on from it; nothing that is there may be overlooked then.
    """
    data = read_last(options, topic, KEY, timeout_seconds=timeout_seconds, decided=decided)
    return None if data is None else decode_progress(data)
