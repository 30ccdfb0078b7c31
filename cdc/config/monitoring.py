"""`[lag]`, `[slot]`, `[alerts]` and `[dashboard]`: when a hop counts as behind, who is told, and where it is shown."""

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
        metadata=about("A hop that is further behind counts as `behind`; `tailrace lag` exits 1", at_least(0)),
    )
    max_bytes: int = field(
        default=0, metadata=about("The same in bytes of the source's log; 0 is no limit", at_least(0))
    )
    stalled_seconds: float = field(
        default=60,
        metadata=about(
            "No step forward for this long although there is something to do: `stalled`", between(1, 86_400)
        ),
    )
    interval_seconds: float = field(default=2, metadata=about("How often the dashboard looks", between(0.2, 60)))
    consumer_groups: bool = field(
        default=True,
        metadata=about(
            "Mirror each store's offsets to the consumer group `<prefix>.<store>`, for tools that read such"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotConfig:
    action: Literal["warn", "webhook", "give-up"] = field(
        default="warn",
        metadata=about("What is done when the slot comes near its limit; `give-up` drops it, to save the source"),
    )
    act_percent: float = field(default=90, metadata=about("Share of the limit at which it is done", between(1, 100)))
    warn_seconds_left: float = field(
        default=3600,
        metadata=about("Warn when the slot would be lost within this time at the present rate", at_least(0)),
    )
    max_bytes: int = field(
        default=0,
        metadata=about("Limit of the log that the slot holds, where the server has none; 0 is none", at_least(0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsConfig:
    webhook: WebhookUrl | None = field(
        default=None, metadata=about("Where alerts are posted as JSON", scheme("http", "https"))
    )
    headers: SecretOptions = field(
        default_factory=SecretOptions, metadata=about("HTTP headers that go with them, such as `Authorization`")
    )
    after_seconds: float = field(
        default=10, metadata=about("Trouble is told when it has lasted this long", between(0, 3600))
    )
    recovered_seconds: float = field(
        default=30, metadata=about("And its end when it has stayed away for this long", between(0, 3600))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardConfig:
    enabled: bool = field(default=True, metadata=about("Whether `tailrace run` serves it"))
    host: str = field(
        default="127.0.0.1", metadata=about("Address to listen on; any but loopback needs a token", not_empty)
    )
    port: int = field(default=8787, metadata=about("Port; 0 takes a free one", between(0, 65_535)))
    token: Secret | None = field(
        default=None, metadata=about("What a visitor must know; without it nothing can be changed from the page")
    )

    def problems(self) -> Iterator[Problem]:
        if self.token is None and not is_loopback(self.host):
            yield "host", "needs a `token` as well: other machines could see the page"
        if self.token is not None and len(self.token.reveal()) < 16:
            yield "token", "must have at least 16 characters"


def is_loopback(host: str) -> bool:
    return host in _LOOPBACK
