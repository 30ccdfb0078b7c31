"""The identity of an index: its uuid, and the `history_uuid` of each primary shard. Detects replaced indices.

Elasticsearch gives a shard a new `history_uuid` when the shard may lack acknowledged operations. This happens when the
shard is restored from a snapshot, and when an operator forces a stale or empty copy to be the primary. An index that is
deleted and created again, or restored after a delete, has a new uuid. Restarts, relocations, promoted replicas, closing
and opening change neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from elasticsearch import Elasticsearch

from cdc.errors import TransientError
from sinks.elasticsearch.client import translated_errors

#: The index's uuid, then the `history_uuid` of each primary shard, by the shard's number.
Identity = Sequence[str]

_WANTED: Final = (
    "indices.*.uuid,indices.*.status,indices.*.shards.*.routing.primary,indices.*.shards.*.routing.state,"
    "indices.*.shards.*.commit.user_data.history_uuid"
)

# While Elasticsearch restores a shard, the shard's files may still hold the `history_uuid` of the snapshot.
_ACTIVE: Final = ("STARTED", "RELOCATING")


class FoundIndices(msgspec.Struct, frozen=True):
    """The present identity of an index. `histories` has no entry for a primary shard that is not available."""

    uuid: str
    is_open: bool
    histories: dict[int, str]

    def is_other_than(self, recorded: Identity) -> bool:
        """Whether the uuid or a known shard history differs from the recorded one."""
        uuid, *histories = recorded
        return self.uuid != uuid or any(
            self.histories.get(shard, history) != history for shard, history in enumerate(histories)
        )

    def has_shards(self, count: int) -> bool:
        """Whether `count` primary shards are available."""
        return len(self.histories) == count

    @property
    def identity(self) -> list[str]:
        """The identity in the form in which a generation records it."""
        return [self.uuid, *(self.histories[shard] for shard in sorted(self.histories))]


def read_found_indices(client: Elasticsearch, pattern: str) -> dict[str, FoundIndices]:
    """Return every matching index that has a shard on some node, including closed indices.

    The API requires a metric. `flush` is a cheap one, and its values are not used.
    """
    with translated_errors():
        answer = client.indices.stats(
            index=pattern,
            metric="flush",
            level="shards",
            expand_wildcards=["open", "closed"],
            forbid_closed_indices=False,
            filter_path=_WANTED,
        ).body
    return {name: _found(index) for name, index in answer.get("indices", {}).items()}


def look_without_shards(client: Elasticsearch, pattern: str) -> dict[str, FoundIndices]:
    """Return every matching index from the cluster state, even if no node holds a shard of it.

    The result has uuids, but no shard histories.
    """
    with translated_errors():
        answer = client.indices.get_settings(
            index=pattern, name="index.uuid", flat_settings=True, expand_wildcards=["open", "closed"]
        ).body
    return {name: FoundIndices(index["settings"]["index.uuid"], True, {}) for name, index in answer.items()}


def why_lost(found: Mapping[str, FoundIndices], names: Iterable[str], recorded: Mapping[str, Identity]) -> str | None:
    """Return why these indices are not the ones that were written. None: every recorded identity matches.

    Raises TransientError if this cannot be determined now: an index is closed, or a primary shard is not available.
    """
    for name in names:
        index = found.get(name)
        if index is None:
            return f"The index {name} is gone."
        if not index.is_open:
            raise TransientError(
                f"The index {name} is closed.", remedy="Open the index. The sync then continues by itself."
            )
        identity = recorded.get(name)
        if identity is None:
            continue
        if index.is_other_than(identity):
            return (
                f"The index {name} is not the one that was written: it was restored, or deleted and created again, or a"
                " stale or empty copy of a shard was made the primary."
            )
        if not index.has_shards(len(identity) - 1):
            raise TransientError(f"A primary shard of the index {name} is not available.")
    return None


def read_identities(client: Elasticsearch, pattern: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the identities of these indices. Raises TransientError unless all their primary shards are available."""
    found = read_found_indices(client, pattern)
    with translated_errors():
        settings = client.indices.get_settings(
            index=pattern, name="index.number_of_shards", flat_settings=True, expand_wildcards=["open", "closed"]
        ).body
    for name in names:
        count = int(settings[name]["settings"]["index.number_of_shards"]) if name in settings else 0
        if name not in found or not found[name].has_shards(count):
            raise TransientError(f"A primary shard of the index {name} is not available.")
    return {name: found[name].identity for name in names}


def _found(index: dict[str, object]) -> FoundIndices:
    shards = msgspec.convert(index.get("shards", {}), dict[int, list[_Shard]], strict=False)
    histories = {
        number: shard.commit.user_data.history_uuid
        for number, copies in shards.items()
        for shard in copies
        if shard.routing.primary and shard.routing.state in _ACTIVE
    }
    return FoundIndices(str(index.get("uuid")), index.get("status") != "close", histories)


class _Routing(msgspec.Struct):
    primary: bool = False
    state: str = ""


class _UserData(msgspec.Struct):
    history_uuid: str = ""


class _Commit(msgspec.Struct):
    user_data: _UserData = msgspec.field(default_factory=_UserData)


class _Shard(msgspec.Struct):
    """One copy of a shard."""

    routing: _Routing = msgspec.field(default_factory=_Routing)
    commit: _Commit = msgspec.field(default_factory=_Commit)
