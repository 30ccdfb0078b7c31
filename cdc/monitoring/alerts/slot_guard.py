"""Acts before the slot reaches its limit, as `[slot] action` says: logs, posts to the webhook, or drops the slot.

Dropping the slot is the only change that monitoring makes, and only if the config asks for it. It keeps the source's
disk from filling up; `tailrace recover` can rebuild the pipeline afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg

from cdc.config import Config
from cdc.errors import TailraceError
from cdc.logs import get_logger
from cdc.monitoring.alerts.alert_rules import in_iso
from cdc.monitoring.status_record import PipelineStatus
from cdc.postgres.connection import connect, explain
from cdc.units import in_bytes

log = get_logger("slot")

_AGAIN_SECONDS = 300.0
_END_SECONDS = 10.0


class SlotGuard:
    """Checks the slot in every status record. `post` sends a message to the webhook, if there is one."""

    def __init__(self, config: Config, post: Callable[[dict[str, object]], None]) -> None:
        self._config = config
        self._post = post
        self._alerted_at: float | None = None
        self.given_up: str | None = None

    def consider(self, record: PipelineStatus) -> None:
        """Act if the slot is at `act_percent` of its limit; again every five minutes while it stays there."""
        used = record.slot.used_percent
        if used is None or used < self._config.slot.act_percent or record.slot.wal_status == "lost":
            self._alerted_at = None
            return
        if self._alerted_at is not None and record.read_at - self._alerted_at < _AGAIN_SECONDS:
            return
        self._alerted_at = record.read_at
        self._act(record, used)

    def _act(self, record: PipelineStatus, used: float) -> None:
        action, held = self._config.slot.action, in_bytes(record.slot.retained_bytes or 0)
        reason = f"Slot {record.slot.name} retains {held} of WAL, {used:.0f} % of its limit."
        log.error("slot_near_limit", reason=reason, action=action)
        if action == "give-up":
            reason = f"{reason} {self._give_up(record.slot.name)}"
        if action != "warn":
            self._post(
                {
                    "event": "slot_near_limit",
                    "pipeline": record.prefix,
                    "where": "slot",
                    "state": record.slot.health.state.value,
                    "reason": reason,
                    "action": action,
                    "at": in_iso(record.read_at),
                }
            )

    def _give_up(self, slot: str) -> str:
        """Drop the slot. Return a sentence that says whether this worked."""
        try:
            with connect(self._config.source.conninfo(), application_name="tailrace dashboard") as connection:
                _drop(connection, slot)
        except (TailraceError, psycopg.Error) as error:
            why = error.message if isinstance(error, TailraceError) else explain(error)
            log.error("slot_drop_failed", reason=why)
            return f"Dropping the slot failed: {why}"
        self.given_up = "The slot was dropped to protect the source, as [slot] action says; run tailrace recover."
        log.error("slot_dropped", slot=slot, remedy="tailrace recover")
        return self.given_up


def _drop(connection: psycopg.Connection, slot: str) -> None:
    """Drop the slot. Its walsender is terminated first, repeatedly, because a slot in use cannot be dropped."""
    give_up_at = time.monotonic() + _END_SECONDS
    while True:
        connection.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots"
            " where slot_name = %s and active_pid is not null",
            [slot],
        )
        try:
            connection.execute("select pg_drop_replication_slot(%s)", [slot])
            return
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.05)
