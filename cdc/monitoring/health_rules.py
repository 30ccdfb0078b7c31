"""From figures to words: is a hop well, and if not, why, and what is to be done? Pure; the config has the thresholds.

Each judgement is a list of what may be wrong, the gravest first; the first that holds is the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cdc.config import Config
from cdc.monitoring.status_record import (
    Health,
    HealthLevel,
    ProcessError,
    SlotStatus,
    SourceStatus,
    StoreStatus,
    TopicsStatus,
)
from cdc.units import in_bytes, in_rows, in_time

# Capture is heard of with every heartbeat; two may be late on a busy machine.
_HEARTBEATS = 3
_LEAST_SILENCE_SECONDS = 10.0
# While a server that holds on to the slot is waited for, nobody reads it for a moment.
_RESTART_SECONDS = 5.0


class HealthRules:
    def __init__(self, config: Config) -> None:
        self._lag = config.lag
        self._limits = config.slot
        self._silence_seconds = max(_LEAST_SILENCE_SECONDS, _HEARTBEATS * config.source.heartbeat_seconds)

    def source(self, source: SourceStatus) -> SourceStatus:
        if source.problem is None:
            return source
        health = _bad(HealthLevel.DOWN, _of("Postgres", source.problem), "Bring Postgres back.")
        return replace(source, health=health)

    def slot(self, slot: SlotStatus, *, is_known: bool, has_begun: bool) -> SlotStatus:
        return replace(slot, health=_first(self._wrong_with_slot(slot, is_known=is_known, has_begun=has_begun)))

    def _wrong_with_slot(self, slot: SlotStatus, *, is_known: bool, has_begun: bool) -> Iterator[Health]:
        if not is_known:
            yield _bad(HealthLevel.UNKNOWN, "The source does not answer, so nobody knows.")
        elif not slot.exists and not has_begun:
            yield _bad(HealthLevel.IDLE, "Capture has not been started yet.", "tailrace run")
        elif not slot.exists:
            yield _bad(HealthLevel.DOWN, f"There is no slot {slot.name}: changes are being lost.", "tailrace recover")
        if slot.wal_status == "lost":
            why = f" ({slot.invalidation_reason})" if slot.invalidation_reason else ""
            lost = f"The server has invalidated the slot{why}: changes are lost to it."
            yield _bad(HealthLevel.DOWN, lost, "tailrace recover")
        if slot.wal_status == "unreserved":
            yield _bad(
                HealthLevel.BEHIND,
                "The slot is over the server's limit and is lost at the next checkpoint.",
                "Start capture now, or raise max_slot_wal_keep_size.",
            )
        remedy = "Find out why capture is behind, or raise max_slot_wal_keep_size."
        used = slot.used_percent
        if used is not None and used >= self._limits.act_percent:
            yield _bad(HealthLevel.BEHIND, f"The slot holds {used:.0f} % of the log that it may hold.", remedy)
        if slot.seconds_left is not None and slot.seconds_left < self._limits.warn_seconds_left:
            left = in_time(slot.seconds_left)
            yield _bad(HealthLevel.BEHIND, f"At the present rate the slot is lost in {left}.", remedy)

    def topics(
        self,
        topics: TopicsStatus,
        slot: SlotStatus,
        *,
        is_reading: bool,
        still_seconds: float,
        refusal: ProcessError | None = None,
    ) -> TopicsStatus:
        """`refusal`: why capture does not run, in its own words. They come before what is seen from here."""
        if refusal is not None and not is_reading:  # or another capture has taken its place
            return replace(topics, health=_bad(HealthLevel.DOWN, refusal.reason, refusal.remedy))
        wrong = self._wrong_with_topics(topics, slot, is_reading=is_reading, still_seconds=still_seconds)
        return replace(topics, health=_first(wrong))

    def _wrong_with_topics(
        self, topics: TopicsStatus, slot: SlotStatus, *, is_reading: bool, still_seconds: float
    ) -> Iterator[Health]:
        if topics.problem is not None:
            yield _bad(HealthLevel.DOWN, _of("Kafka", topics.problem), "Bring the brokers back.")
        if topics.state is None or topics.heartbeat_seconds is None:
            yield _bad(HealthLevel.IDLE, "Nothing has been published yet.", "tailrace run")
            return
        if slot.health.state is HealthLevel.DOWN:
            yield _bad(HealthLevel.DOWN, f"Capture cannot go on: {slot.health.reason}", slot.health.remedy)
        if topics.state == "recovering":
            yield _bad(HealthLevel.IDLE, "The pipeline is being recovered.", "Let tailrace recover end.")
        if topics.state != "streaming":
            yield _bad(HealthLevel.IDLE, "The first copy is under way; changes follow it.")
        silent = in_time(topics.heartbeat_seconds)
        if slot.health.state is not HealthLevel.UNKNOWN:
            if not is_reading and topics.heartbeat_seconds > _RESTART_SECONDS:
                yield _bad(
                    HealthLevel.DOWN, f"Capture does not run: nobody has read the slot for {silent}.", "tailrace run"
                )
            if topics.heartbeat_seconds > self._silence_seconds:
                look = "Look at its log; restart it if it hangs."
                yield _bad(HealthLevel.STALLED, f"Capture has said nothing for {silent}.", look)
        if still_seconds > self._lag.stalled_seconds:
            yield _bad(HealthLevel.STALLED, f"Capture has not moved for {in_time(still_seconds)}.", "Look at its log.")
        if self._is_behind(topics.seconds, topics.bytes):
            yield _bad(HealthLevel.BEHIND, f"Capture is {_behind(topics.seconds, topics.bytes)} behind the source.")
        if topics.parked:
            yield parked_by_capture(topics.parked)

    def store(
        self,
        store: StoreStatus,
        topics: TopicsStatus,
        *,
        still_seconds: float,
        own_seconds: float | None,
        refusal: ProcessError | None = None,
    ) -> StoreStatus:
        """`refusal`: why its sync does not run, in its own words. They come before what is seen from here."""
        if refusal is not None:
            return replace(store, health=_bad(HealthLevel.DOWN, refusal.reason, refusal.remedy))
        return replace(store, health=_first(self._wrong_with_store(store, topics, still_seconds, own_seconds)))

    def _wrong_with_store(
        self, store: StoreStatus, topics: TopicsStatus, still_seconds: float, own_seconds: float | None
    ) -> Iterator[Health]:
        start = f"tailrace sync {store.name}"
        if store.problem is not None:
            yield _bad(HealthLevel.DOWN, store.problem, "Bring the store back; it then catches up by itself.")
        if store.seconds is None and store.building is not None:
            yield _bad(HealthLevel.IDLE, "It is being built; nothing is served yet.")
        if store.seconds is None:
            yield _bad(HealthLevel.IDLE, "Nothing is served yet.", start)
        if store.paused:
            yield _bad(HealthLevel.PAUSED, "Somebody has paused it.", f"tailrace resume {store.name}")
        if still_seconds > self._lag.stalled_seconds:
            yield _bad(
                HealthLevel.STALLED,
                f"It has not moved for {in_time(still_seconds)}, with {store.records or 0:,} records to go.",
                f"Is it synced at all? {start}; its log says what is wrong.",
            )
        if self._is_behind(store.seconds, store.bytes) and not own_seconds:
            yield _bad(HealthLevel.BEHIND, "It has all that was published; capture is behind.", topics.health.remedy)
        if self._is_behind(store.seconds, store.bytes):
            yield _bad(HealthLevel.BEHIND, f"It is {_behind(store.seconds, store.bytes)} behind the source.")
        if store.parked:
            yield parked_for_store(store.name, store.parked)

    def _is_behind(self, seconds: float | None, size: int | None) -> bool:
        too_many = bool(self._lag.max_bytes) and size is not None and size > self._lag.max_bytes
        return too_many or (seconds is not None and seconds > self._lag.max_seconds)


def parked_by_capture(rows: int) -> Health:
    reason = f"{in_rows(rows, 'is', 'are')} parked: too large to publish, so in no store."
    return _bad(HealthLevel.PARKED, reason, "tailrace parked list")


def parked_for_store(store: str, rows: int) -> Health:
    reason = f"{in_rows(rows, 'is', 'are')} parked, and not in this store."
    return _bad(HealthLevel.PARKED, reason, f"tailrace parked list --store {store}")


def _first(wrong: Iterator[Health]) -> Health:
    return next(wrong, Health())


def _bad(state: HealthLevel, reason: str, remedy: str = "") -> Health:
    return Health(state=state, reason=reason, remedy=remedy)


def _of(server: str, problem: str) -> str:
    """Most problems name the server already."""
    return problem if problem.startswith(server) else f"{server}: {problem}"


def _behind(seconds: float | None, size: int | None) -> str:
    parts = [in_time(seconds)] if seconds is not None else []
    return " and ".join([*parts, *([in_bytes(size)] if size is not None else [])])
