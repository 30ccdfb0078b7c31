"""Conditions that must hold before capture may continue from its progress record.

Each function raises `RefusedError` with the found value, the expected value, and the command that repairs it. Capture
never retries after such an error, because it would lose changes silently.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdc.errors import RefusedError
from cdc.kafka.topics import Topic, Topics
from cdc.lsn import LSN
from cdc.positions.progress import Progress
from cdc.postgres.catalog import Publication, ReplicationSlot

_RECOVER = "Run: tailrace recover (it shows its plan and asks first). Every table then needs a snapshot."


def check_cluster(progress: Progress, system_identifier: str) -> None:
    """Refuse a database cluster other than the one in the progress record."""
    if system_identifier != progress.system_identifier:
        raise RefusedError(
            f"This is another database cluster: its system identifier is {system_identifier}, "
            f"but the progress record has {progress.system_identifier}.",
            remedy=f"Point [source] dsn at the right server. If this server replaces it: {_RECOVER}",
        )


def check_server(
    progress: Progress,
    system_identifier: str,
    timeline: int,
    *,
    log_end: LSN | None = None,
    forked_at: LSN | None = None,
) -> None:
    """Refuse a server whose WAL lacks changes that capture has published.

    `forked_at`: the LSN at which the server's history left the progress record's timeline. None: it did not leave that
    timeline, or was never on it. `log_end`: the end of the server's WAL, if the caller has read it.
    """
    check_cluster(progress, system_identifier)
    # A commit record starts at `position`, so the WAL must reach beyond it. On an idle server `position` is only the
    # end of the WAL, and no commit record starts there.
    commit = int(progress.seq > 0 or progress.inside_transaction)
    published = LSN(max(progress.confirm_lsn, progress.position - progress.base + commit))
    if timeline == progress.timeline:
        if log_end is not None and log_end < published:
            raise RefusedError(
                f"The server's WAL ends at {log_end}, but capture has published changes up to {published}: "
                "the server was restored from an older backup.",
                remedy=_RECOVER,
            )
    elif forked_at is None or forked_at < published:
        where = f"left it at {forked_at}" if forked_at is not None else "was never on it"
        raise RefusedError(
            f"The server is on timeline {timeline}. Capture has published timeline {progress.timeline} "
            f"up to {published}, "
            f"and this server {where}: it was restored or promoted, and lacks changes that capture has published.",
            remedy=_RECOVER,
        )


def check_slot_name(progress: Progress, name: str) -> None:
    """Refuse a slot other than the progress record's. Only that slot is known to hold all changes that follow."""
    if progress.slot not in ("", name):
        raise RefusedError(
            f"[source] slot is {name}, but the progress record has slot {progress.slot}, which still keeps WAL.",
            remedy=f"Set [source] slot back to {progress.slot}. To rename it: {_RECOVER}",
        )


def check_state(progress: Progress) -> None:
    """Refuse to start during an unfinished recovery."""
    if progress.state == "recovering":
        raise RefusedError(
            "A recovery of this pipeline has started and has not finished.", remedy="Run it again: tailrace recover"
        )


def lost_states(topic: str) -> RefusedError:
    """Return the error for a missing record of the tables' states.

    Capture writes that record in one transaction with the first progress record that has a start position. If there is
    such a progress record, the record of the states was lost.
    """
    return RefusedError(
        f"Topic {topic} has lost its records: it is unknown which tables are incomplete.",
        remedy="Run: tailrace recover. It writes that topic again, and every table then needs a snapshot.",
    )


def check_slot(progress: Progress | None, slot: ReplicationSlot, *, name: str, database: str) -> None:
    """Refuse a slot that is not capture's, is invalidated, or is ahead of the progress record."""
    check_owner(slot, name=name, database=database)
    check_valid(slot, name=name)
    if progress is None:
        raise RefusedError(
            f"Slot {name} exists, but there is no progress record: another program created the slot, "
            "or the progress topic was lost.",
            remedy="If [kafka] prefix was changed, set it back: another prefix is another pipeline, and needs another "
            f"[source] slot. If the progress topic was lost: {_RECOVER} If capture has not used this slot yet: "
            f"select pg_drop_replication_slot('{name}').",
        )
    if slot.confirmed_flush_lsn is not None and slot.confirmed_flush_lsn > progress.confirmable:
        raise RefusedError(
            f"Slot {name} is at {slot.confirmed_flush_lsn}, but progress is at {LSN(progress.confirm_lsn)}: another "
            "program re-created or advanced the slot, and it no longer has the changes between these LSNs.",
            remedy=_RECOVER,
        )


def check_owner(slot: ReplicationSlot, *, name: str, database: str) -> None:
    """Refuse a slot with another plugin or of another database."""
    if slot.plugin != "pgoutput" or slot.database != database:
        raise _of_something_else(name, f"plugin {slot.plugin}, database {slot.database}")


def check_not_physical(name: str, *, is_physical: bool) -> None:
    """Refuse a physical slot."""
    if is_physical:
        raise _of_something_else(name, "it is a physical slot, as standby servers use them")


def _of_something_else(name: str, what: str) -> RefusedError:
    return RefusedError(f"Slot {name} belongs to something else: {what}.", remedy="Choose another [source] slot.")


def check_valid(slot: ReplicationSlot, *, name: str) -> None:
    """Refuse an invalidated slot."""
    if slot.wal_status == "lost" or slot.restart_lsn is None:
        raise RefusedError(
            f"Slot {name} is invalidated: the server has removed WAL that capture had not read yet "
            "(see max_slot_wal_keep_size and idle_replication_slot_timeout).",
            remedy=_RECOVER,
        )


def missing_slot(name: str, confirmed: LSN) -> RefusedError:
    """Return the error for a slot that no longer exists. `confirmed`: the last confirmed LSN."""
    return RefusedError(
        f"Slot {name} is gone; progress is at {confirmed}. Capture cannot read the changes after that LSN.",
        remedy=_RECOVER,
    )


def check_publication(
    progress: Progress, publication: Publication | None, *, name: str, existing_tables: set[str]
) -> None:
    """Refuse a publication that was dropped, re-created or altered.

    `existing_tables`: the recorded oids that are still tables. Postgres removes a dropped table from the publication.
    """
    if publication is None:
        raise RefusedError(
            f"Publication {name} is gone: Postgres has not sent the changes made since it was dropped.",
            remedy=_RECOVER,
        )
    recorded = {oid: entry for oid, entry in progress.publication_tables.items() if oid in existing_tables}
    # An additional table is harmless: capture treats it as new and incomplete.
    found = {oid: publication.tables.get(oid) for oid in recorded}
    if publication.identity != progress.publication or found != recorded:
        raise RefusedError(
            f"Publication {name} was re-created or altered since capture last read it: "
            "Postgres may not have sent the changes made in between.",
            remedy=_RECOVER,
        )


def check_partitions_setting(progress: Progress, partitions: int) -> None:
    """Refuse a [kafka] partitions setting other than the one with which the topics were created."""
    for name, offsets in progress.end_offsets.items():
        if len(offsets) != partitions:
            raise RefusedError(
                f"[kafka] partitions is {partitions}, but topic {name} was created with {len(offsets)}.",
                remedy=f"Set [kafka] partitions back to {len(offsets)}. To re-partition every topic: {_RECOVER}",
            )


def check_topics(progress: Progress, topics: Topics) -> None:
    """Refuse topics that were deleted, re-created or re-partitioned, that are not compacted, or that lost records."""
    described = topics.describe(progress.topic_ids)
    for name, topic_id in progress.topic_ids.items():
        topic = described.get(name)
        if topic is None or topic.id != topic_id:
            what = "is gone" if topic is None else f"was re-created (id {topic.id}, expected {topic_id})"
            raise RefusedError(f"Topic {name} {what}: its records are lost.", remedy=_RECOVER)
    _check_partitions(progress, described)
    _check_policies(progress, topics)
    ends = topics.end_offsets({name: len(offsets) for name, offsets in progress.end_offsets.items()})
    for name, recorded in progress.end_offsets.items():
        for partition, (end, expected) in enumerate(zip(ends[name], recorded, strict=True)):
            if end < expected:
                raise RefusedError(
                    f"Topic {name} partition {partition} ends at offset {end}, but the progress record has {expected}: "
                    "the broker has lost records that it had acknowledged.",
                    remedy=_RECOVER,
                )


def _check_partitions(progress: Progress, described: Mapping[str, Topic]) -> None:
    for name, offsets in progress.end_offsets.items():
        if described[name].partitions != len(offsets):
            raise RefusedError(
                f"Topic {name} has {described[name].partitions} partitions, but it was created with {len(offsets)}: "
                "its keys now belong to other partitions.",
                remedy=_RECOVER,
            )


def _check_policies(progress: Progress, topics: Topics) -> None:
    for name, policy in topics.cleanup_policies(progress.end_offsets).items():
        if policy != "compact":
            raise RefusedError(
                f"Topic {name} has cleanup.policy={policy}, expected compact: Kafka may have deleted rows from it.",
                remedy=_RECOVER,
            )
