"""`[lag]`, `[slot]`, `[alerts]` and `[dashboard]`: lag thresholds, slot protection, alert delivery, the web server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from cdc.config.settings import Problem, about, at_least, between, not_empty, scheme
from cdc.secrets import Secret, SecretOptions, WebhookUrl

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class LagConfig:
    max_seconds: float = field(
        default=60,
        metadata=about("A hop with more lag counts as `behind`, and `tailrace lag` exits with 1", at_least(0)),
    )
    max_bytes: int = field(default=0, metadata=about("The same limit in bytes of WAL; 0: no limit", at_least(0)))
    stalled_seconds: float = field(
        default=60,
        metadata=about(
            "A hop that has work and makes no progress for this long counts as `stalled`", between(1, 86_400)
        ),
    )
    interval_seconds: float = field(
        default=2, metadata=about("Interval at which the dashboard polls", between(0.2, 60))
    )
    consumer_groups: bool = field(
        default=True,
        metadata=about("Mirror each store's offsets to the consumer group `<prefix>.<store>`, for Kafka tools"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotConfig:
    action: Literal["warn", "webhook", "give-up"] = field(
        default="warn",
        metadata=about("Action when the slot nears its limit; `give-up` drops the slot, to protect the source's disk"),
    )
    act_percent: float = field(
        default=90, metadata=about("Percentage of the limit that triggers the action", between(1, 100))
    )
    warn_seconds_left: float = field(
        default=3600,
        metadata=about(
            "Warn if the server would invalidate the slot within this time at the current rate", at_least(0)
        ),
    )
    max_bytes: int = field(
        default=0,
        metadata=about("Limit of the WAL that the slot retains, if the server has no limit; 0: none", at_least(0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsConfig:
    webhook: WebhookUrl | None = field(
        default=None, metadata=about("URL to which alerts are posted as JSON", scheme("http", "https"))
    )
    headers: SecretOptions = field(
        default_factory=SecretOptions, metadata=about("HTTP headers of the alerts, such as `Authorization`")
    )
    after_seconds: float = field(
        default=10, metadata=about("An alert is sent when a problem has lasted this long", between(0, 3600))
    )
    recovered_seconds: float = field(
        default=30,
        metadata=about("The alert is resolved when the problem has been gone for this long", between(0, 3600)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardConfig:
    enabled: bool = field(default=True, metadata=about("`tailrace run` serves the dashboard"))
    host: str = field(
        default="127.0.0.1",
        metadata=about("Address to listen on; any address but loopback requires a token", not_empty),
    )
    port: int = field(default=8787, metadata=about("Port; 0: any free port", between(0, 65_535)))
    token: Secret | None = field(default=None, metadata=about("Login token; without it, the dashboard is read-only"))

    def problems(self) -> Iterator[Problem]:
        if self.token is None and not is_loopback(self.host):
            yield "host", "needs a `token` as well: other machines could open the dashboard"
        if self.token is not None and len(self.token.reveal()) < 16:
            yield "token", "must have at least 16 characters"


def is_loopback(host: str) -> bool:
    return host in _LOOPBACK
