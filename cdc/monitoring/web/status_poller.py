"""The dashboard's polling thread: it reads the status every few seconds and passes it to its consumers.

These are the history, the journal, the alerts, the slot guard and the mirror of the consumer groups.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from cdc.config import Config
from cdc.logs import get_logger
from cdc.monitoring.alerts.alert_rules import AlertRules
from cdc.monitoring.alerts.conditions import conditions_of
from cdc.monitoring.alerts.delivery import Delivery
from cdc.monitoring.alerts.journal import Journal
from cdc.monitoring.alerts.slot_guard import SlotGuard
from cdc.monitoring.status_record import PipelineStatus
from cdc.monitoring.web.consumer_groups import GroupMirror
from cdc.monitoring.web.history import History, figures_of

log = get_logger("dashboard")

_POLL_SECONDS = 4.0


class StatusSource(Protocol):
    """The interface of `Observer`. Tests of the page implement it with fixed status records."""

    def poll(self, deadline_seconds: float) -> PipelineStatus: ...

    def close(self) -> None: ...


class StatusPoller:
    """Polls the status. `latest` is the last record, None before the first poll; `number` counts the polls."""

    def __init__(
        self,
        config: Config,
        observer: StatusSource,
        *,
        history: History,
        journal: Journal,
        delivery: Delivery,
        mirror: GroupMirror | None,
    ) -> None:
        self.latest: PipelineStatus | None = None
        self.number = 0
        self.polled_at = 0.0  # on the monotonic clock
        self.history = history
        self.journal = journal
        self._config = config
        self._observer = observer
        self._delivery = delivery
        self._mirror = mirror
        self._alarms = AlertRules(config.alerts, config.kafka.prefix)
        self._guard = SlotGuard(config, delivery.post)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    @property
    def interval_seconds(self) -> float:
        """The time between the starts of two polls."""
        return self._config.lag.interval_seconds

    def start(self) -> None:
        self._delivery.start()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(_POLL_SECONDS + 2)
        self._delivery.stop()
        self._observer.close()
        self.history.close()

    @property
    def age_seconds(self) -> float | None:
        """The time since the last poll; None before the first one."""
        return time.monotonic() - self.polled_at if self.latest is not None else None

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self._guarded(self.poll_once)
            self._stop.wait(max(0.05, self.interval_seconds - (time.monotonic() - began)))

    def poll_once(self) -> None:
        """Poll once and pass the record on."""
        record = self._observer.poll(_POLL_SECONDS)
        self.latest, self.polled_at = record, time.monotonic()
        self.number += 1
        self._guarded(lambda: self.history.add(record.read_at, figures_of(record)))
        self._guarded(lambda: self._deliver(record))
        self._guarded(lambda: self._guard.consider(record))
        mirror = self._mirror
        if mirror is not None and record.topics.problem is None:
            self._guarded(lambda: mirror.mirror(record))

    def _deliver(self, record: PipelineStatus) -> None:
        conditions = conditions_of(record)
        self.journal.note(conditions, record.read_at)
        for alert in self._alarms.consider(conditions, record.read_at):
            self._delivery.deliver(alert)

    def _guarded(self, call: Callable[[], None]) -> None:
        """Call a consumer and log its errors, so that an error of one consumer does not stop the polling."""
        try:
            call()
        except Exception as error:
            log.exception("poll_failed", reason=f"{type(error).__name__}: {error}")
