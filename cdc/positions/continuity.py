"""Fail closed: what must still be so before capture may go on from its progress record.

Every refusal says what was seen, what was expected, and the command that mends it. None of these is ever retried: going
on would lose changes without a word.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdc.errors import RefusedError
from cdc.kafka.topics import Topic, Topics
from cdc.lsn import LSN
from cdc.positions.progress import Progress
from cdc.postgres.catalog import Publication, ReplicationSlot

_RECOVER = "Run: tailrace recover (it shows what it will do, and asks). It copies every table again, in place."


def check_cluster(progress: Progress, system_identifier: str) -> None:
    if system_identifier != progress.system_identifier:
        raise RefusedError(
            f"This is another database cluster: its system identifier is {system_identifier}, "
            f"progress was made on {progress.system_identifier}.",
            remedy=f"Point [source] dsn at the right server. If this one replaces it: {_RECOVER}",
        )


def check_server(
    progress: Progress,
    system_identifier: str,
    timeline: int,
    *,
    log_end: LSN | None = None,
    forked_at: LSN | None = None,
) -> None:
    """`forked_at`: where the server's history left progress's timeline; None where it did not, or never was on it.

    `log_end`: how far the server's log goes, where that was asked.
    """
    check_cluster(progress, system_identifier)
    # At `position` itself a commit begins, unless it is only where the server had got to when nobody wrote.
    commit = int(progress.seq > 0 or progress.inside_transaction)
    published = LSN(max(progress.confirm_lsn, progress.position - progress.base + commit))
    if timeline == progress.timeline:
        if log_end is not None and log_end < published:
            raise RefusedError(
                f"The server's log ends at {log_end}, but changes up to {published} were published: "
                "it was restored from an older backup.",
                remedy=_RECOVER,
            )
    elif forked_at is None or forked_at < published:
        where = f"left it at {forked_at}" if forked_at is not None else "was never on it"
        raise RefusedError(
            f"The server is on timeline {timeline}. Progress was made on timeline {progress.timeline} "
            f"up to {published}, "
            f"and this server {where}: it was restored or promoted, and lacks changes that were published.",
            remedy=_RECOVER,
        )


def check_slot_name(progress: Progress, name: str) -> None:
    """Only the slot that progress was made with is known to hold what comes next."""
    if progress.slot not in ("", name):
        raise RefusedError(
            f"[source] slot is {name}, but progress was made with slot {progress.slot}, which goes on keeping WAL.",
            remedy=f"Set [source] slot back to {progress.slot}. To rename it: {_RECOVER}",
        )


def check_state(progress: Progress) -> None:
    if progress.state == "recovering":
        raise RefusedError(
            "A recovery of this pipeline was begun and has not ended.", remedy="Run it again: tailrace recover"
        )


def lost_states(topic: str) -> RefusedError:
    """The tables' record is written in one transaction with the first progress record that says where to begin."""
    return RefusedError(
        f"Topic {topic} has lost its records: which tables are incomplete is not known any more.",
        remedy="Run: tailrace recover. It copies every table again, and writes that topic anew.",
    )


def check_slot(progress: Progress | None, slot: ReplicationSlot, *, name: str, database: str) -> None:
    check_owner(slot, name=name, database=database)
    check_valid(slot, name=name)
    if progress is None:
        raise RefusedError(
            f"Slot {name} exists, but there is no progress record: it was made by someone else, "
            "or the progress topic was lost.",
            remedy="If [kafka] prefix was changed, set it back; another prefix is another pipeline, and needs another "
            f"[source] slot. If the progress topic was lost: {_RECOVER} If nothing was captured with this slot yet: "
            f"select pg_drop_replication_slot('{name}').",
        )
    if slot.confirmed_flush_lsn is not None and slot.confirmed_flush_lsn > progress.confirmable:
        raise RefusedError(
            f"Slot {name} stands at {slot.confirmed_flush_lsn}, progress at {LSN(progress.confirm_lsn)}: the slot was "
            "re-created or advanced by someone else, and the changes between are gone from it.",
            remedy=_RECOVER,
        )


def check_owner(slot: ReplicationSlot, *, name: str, database: str) -> None:
    if slot.plugin != "pgoutput" or slot.database != database:
        raise _of_something_else(name, f"plugin {slot.plugin}, database {slot.database}")


def check_not_physical(name: str, *, is_physical: bool) -> None:
    if is_physical:
        raise _of_something_else(name, "it is a physical one, as standbys use them")


def _of_something_else(name: str, what: str) -> RefusedError:
    return RefusedError(f"Slot {name} belongs to something else: {what}.", remedy="Choose another [source] slot.")


def check_valid(slot: ReplicationSlot, *, name: str) -> None:
    if slot.wal_status == "lost" or slot.restart_lsn is None:
        raise RefusedError(
            f"Slot {name} is invalidated: the server has thrown away WAL that was not read yet "
            "(see max_slot_wal_keep_size and idle_replication_slot_timeout).",
            remedy=_RECOVER,
        )


def missing_slot(name: str, confirmed: LSN) -> RefusedError:
    return RefusedError(
        f"Slot {name} is gone; progress stands at {confirmed}. Changes since then cannot be read.",
        remedy=_RECOVER,
    )


def check_publication(
    progress: Progress, publication: Publication | None, *, name: str, existing_tables: set[str]
) -> None:
    """`existing_tables`: those recorded oids that are still tables; a dropped one leaves the publication by itself."""
    if publication is None:
        raise RefusedError(
            f"Publication {name} is gone: changes made since then were not sent.",
            remedy=_RECOVER,
        )
    recorded = {oid: entry for oid, entry in progress.publication_tables.items() if oid in existing_tables}
    # A table more is no harm: it becomes known as new, and incomplete.
    found = {oid: publication.tables.get(oid) for oid in recorded}
    if publication.identity != progress.publication or found != recorded:
        raise RefusedError(
            f"Publication {name} was re-created or altered while capture did not look: "
            "changes made in between may not have been sent.",
            remedy=_RECOVER,
        )


def check_partitions_setting(progress: Progress, partitions: int) -> None:
    for name, offsets in progress.end_offsets.items():
        if len(offsets) != partitions:
            raise RefusedError(
                f"[kafka] partitions is {partitions}, but topic {name} was made with {len(offsets)}.",
                remedy=f"Set [kafka] partitions back to {len(offsets)}. To re-partition every topic: {_RECOVER}",
            )


def check_topics(progress: Progress, topics: Topics) -> None:
    described = topics.describe(progress.topic_ids)
    for name, topic_id in progress.topic_ids.items():
        topic = described.get(name)
        if topic is None or topic.id != topic_id:
            what = "is gone" if topic is None else f"was re-created (id {topic.id}, expected {topic_id})"
            raise RefusedError(f"Topic {name} {what}: what it held is lost.", remedy=_RECOVER)
    _check_partitions(progress, described)
    _check_policies(progress, topics)
    ends = topics.end_offsets({name: len(offsets) for name, offsets in progress.end_offsets.items()})
    for name, recorded in progress.end_offsets.items():
        for partition, (end, expected) in enumerate(zip(ends[name], recorded, strict=True)):
            if end < expected:
                raise RefusedError(
                    f"Topic {name} partition {partition} ends at offset {end}, progress recorded {expected}: "
                    "the broker has lost records that it had acknowledged.",
                    remedy=_RECOVER,
                )


def _check_partitions(progress: Progress, described: Mapping[str, Topic]) -> None:
    for name, offsets in progress.end_offsets.items():
        if described[name].partitions != len(offsets):
            raise RefusedError(
                f"Topic {name} has {described[name].partitions} partitions, it was made with {len(offsets)}: "
                "keys no longer go where they went.",
                remedy=_RECOVER,
            )


def _check_policies(progress: Progress, topics: Topics) -> None:
    for name, policy in topics.cleanup_policies(progress.end_offsets).items():
        if policy != "compact":
            raise RefusedError(
                f"Topic {name} has cleanup.policy={policy}, expected compact: rows may have been deleted from it.",
                remedy=_RECOVER,
            )
