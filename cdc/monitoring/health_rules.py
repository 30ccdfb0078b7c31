"""Rules that derive each hop's health (level, reason, remedy) from its figures. No I/O; the config has the thresholds.

Each rule set yields the problems that apply, most severe first. The first one is the hop's health.
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

# Capture writes a progress record with every heartbeat. Two of them may be late on a busy machine.
_HEARTBEATS = 3
_LEAST_SILENCE_SECONDS = 10.0
# After a restart, capture waits until the server releases the slot. The slot is inactive for that moment.
_RESTART_SECONDS = 5.0


class HealthRules:
    """Sets the `health` of each hop's status from the thresholds in `[lag]`, `[slot]` and `[source]`."""

    def __init__(self, config: Config) -> None:
        self._lag = config.lag
        self._limits = config.slot
        self._silence_seconds = max(_LEAST_SILENCE_SECONDS, _HEARTBEATS * config.source.heartbeat_seconds)

    def source(self, source: SourceStatus) -> SourceStatus:
        """Return `source` with its health."""
        if source.problem is None:
            return source
        health = _bad(
            HealthLevel.DOWN, _of("Postgres", source.problem), "Start Postgres, or restore the connection to it."
        )
        return replace(source, health=health)

    def slot(self, slot: SlotStatus, *, is_known: bool, has_begun: bool) -> SlotStatus:
        """Return `slot` with its health.

        `is_known`: whether the source answered. `has_begun`: whether capture has ever started, so the slot must exist.
        """
        return replace(slot, health=_first(self._wrong_with_slot(slot, is_known=is_known, has_begun=has_begun)))

    def _wrong_with_slot(self, slot: SlotStatus, *, is_known: bool, has_begun: bool) -> Iterator[Health]:
        if not is_known:
            yield _bad(HealthLevel.UNKNOWN, "The source does not answer, so the slot's state is unknown.")
        elif not slot.exists and not has_begun:
            yield _bad(HealthLevel.IDLE, "Capture has not been started yet.", "tailrace run")
        elif not slot.exists:
            yield _bad(
                HealthLevel.DOWN, f"Slot {slot.name} does not exist: changes are being lost.", "tailrace recover"
            )
        if slot.wal_status == "lost":
            why = f" ({slot.invalidation_reason})" if slot.invalidation_reason else ""
            lost = f"The server has invalidated the slot{why}: changes are lost."
            yield _bad(HealthLevel.DOWN, lost, "tailrace recover")
        if slot.wal_status == "unreserved":
            yield _bad(
                HealthLevel.BEHIND,
                "The slot exceeds the server's limit; the server invalidates it at the next checkpoint.",
                "Start capture now, or raise max_slot_wal_keep_size.",
            )
        remedy = "Find out why capture is behind, or raise max_slot_wal_keep_size."
        used = slot.used_percent
        if used is not None and used >= self._limits.act_percent:
            yield _bad(HealthLevel.BEHIND, f"The slot retains {used:.0f} % of the WAL that it may retain.", remedy)
        if slot.seconds_left is not None and slot.seconds_left < self._limits.warn_seconds_left:
            left = in_time(slot.seconds_left)
            yield _bad(HealthLevel.BEHIND, f"At the current rate the server invalidates the slot in {left}.", remedy)

    def topics(
        self,
        topics: TopicsStatus,
        slot: SlotStatus,
        *,
        is_reading: bool,
        still_seconds: float,
        refusal: ProcessError | None = None,
    ) -> TopicsStatus:
        """Return `topics` with its health. `refusal`: capture's own reason for not running; it has precedence."""
        if refusal is not None and not is_reading:  # if the slot is read, another capture has taken over
            return replace(topics, health=_bad(HealthLevel.DOWN, refusal.reason, refusal.remedy))
        wrong = self._wrong_with_topics(topics, slot, is_reading=is_reading, still_seconds=still_seconds)
        return replace(topics, health=_first(wrong))

    def _wrong_with_topics(
        self, topics: TopicsStatus, slot: SlotStatus, *, is_reading: bool, still_seconds: float
    ) -> Iterator[Health]:
        if topics.problem is not None:
            yield _bad(
                HealthLevel.DOWN, _of("Kafka", topics.problem), "Start the brokers, or restore the connection to them."
            )
        if topics.state is None or topics.heartbeat_seconds is None:
            yield _bad(HealthLevel.IDLE, "Nothing has been published yet.", "tailrace run")
            return
        if slot.health.state is HealthLevel.DOWN:
            yield _bad(HealthLevel.DOWN, f"Capture cannot continue: {slot.health.reason}", slot.health.remedy)
        if topics.state == "recovering":
            yield _bad(HealthLevel.IDLE, "`tailrace recover` is running.", "Wait until it ends.")
        if topics.state != "streaming":
            yield _bad(HealthLevel.IDLE, "The initial snapshot is running; changes follow it.")
        silent = in_time(topics.heartbeat_seconds)
        if slot.health.state is not HealthLevel.UNKNOWN:
            if not is_reading and topics.heartbeat_seconds > _RESTART_SECONDS:
                yield _bad(
                    HealthLevel.DOWN,
                    f"Capture is not running: no process has read the slot for {silent}.",
                    "tailrace run",
                )
            if topics.heartbeat_seconds > self._silence_seconds:
                poll = "Read capture's log; restart capture if it hangs."
                yield _bad(HealthLevel.STALLED, f"Capture has sent no heartbeat for {silent}.", poll)
        if still_seconds > self._lag.stalled_seconds:
            still = in_time(still_seconds)
            yield _bad(HealthLevel.STALLED, f"Capture has made no progress for {still}.", "Read capture's log.")
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
        """Return `store` with its health. `refusal`: the sync's own reason for not running; it has precedence."""
        if refusal is not None:
            return replace(store, health=_bad(HealthLevel.DOWN, refusal.reason, refusal.remedy))
        return replace(store, health=_first(self._wrong_with_store(store, topics, still_seconds, own_seconds)))

    def _wrong_with_store(
        self, store: StoreStatus, topics: TopicsStatus, still_seconds: float, own_seconds: float | None
    ) -> Iterator[Health]:
        start = f"tailrace sync {store.name}"
        if store.problem is not None:
            yield _bad(
                HealthLevel.DOWN,
                store.problem,
                "Start the store, or restore the connection to it; it then catches up by itself.",
            )
        if store.seconds is None and store.building is not None:
            yield _bad(HealthLevel.IDLE, "The store is being built; it serves no data yet.")
        if store.seconds is None:
            yield _bad(HealthLevel.IDLE, "The store serves no data yet.", start)
        if store.paused:
            yield _bad(HealthLevel.PAUSED, "An operator has paused the sync.", f"tailrace resume {store.name}")
        if still_seconds > self._lag.stalled_seconds:
            yield _bad(
                HealthLevel.STALLED,
                f"The store has made no progress for {in_time(still_seconds)}; {store.records or 0:,} records remain.",
                f"Check that its sync runs ({start}); read the sync's log.",
            )
        if self._is_behind(store.seconds, store.bytes) and not own_seconds:
            yield _bad(
                HealthLevel.BEHIND,
                "The store has everything that was published; capture is behind.",
                topics.health.remedy,
            )
        if self._is_behind(store.seconds, store.bytes):
            yield _bad(HealthLevel.BEHIND, f"The store is {_behind(store.seconds, store.bytes)} behind the source.")
        if store.parked:
            yield parked_for_store(store.name, store.parked)

    def _is_behind(self, seconds: float | None, size: int | None) -> bool:
        too_many = bool(self._lag.max_bytes) and size is not None and size > self._lag.max_bytes
        return too_many or (seconds is not None and seconds > self._lag.max_seconds)


def parked_by_capture(rows: int) -> Health:
    """Return the health of capture while it has parked this many rows."""
    reason = f"{in_rows(rows, 'is', 'are')} parked: too large to publish, so in no store."
    return _bad(HealthLevel.PARKED, reason, "tailrace parked list")


def parked_for_store(store: str, rows: int) -> Health:
    """Return the health of a store while this many of its rows are parked."""
    reason = f"{in_rows(rows, 'is', 'are')} parked, so not in this store."
    return _bad(HealthLevel.PARKED, reason, f"tailrace parked list --store {store}")


def _first(wrong: Iterator[Health]) -> Health:
    return next(wrong, Health())


def _bad(state: HealthLevel, reason: str, remedy: str = "") -> Health:
    return Health(state=state, reason=reason, remedy=remedy)


def _of(server: str, problem: str) -> str:
    """Return the problem, prefixed with the server's name unless it starts with it."""
    return problem if problem.startswith(server) else f"{server}: {problem}"


def _behind(seconds: float | None, size: int | None) -> str:
    parts = [in_time(seconds)] if seconds is not None else []
    return " and ".join([*parts, *([in_bytes(size)] if size is not None else [])])
