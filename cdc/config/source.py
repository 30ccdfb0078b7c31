"""`[source]`: the Postgres database, the slot, the publication and the tables to capture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from psycopg.conninfo import make_conninfo

from cdc.config.dsn import dsn_parameters, dsn_problem
from cdc.config.settings import Problem, about, between, matching, not_empty
from cdc.config.tables import TableSelector
from cdc.secrets import Dsn, Secret

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTlsConfig:
    """libpq's TLS settings. The DSN may contain them instead (`sslmode=…`), but not both."""

    ca: Path | None = field(default=None, metadata=about("PEM file of the trusted certificate authorities"))
    cert: Path | None = field(default=None, metadata=about("PEM file of the client's certificate"))
    key: Path | None = field(default=None, metadata=about("PEM file of the client's key"))
    mode: SslMode = field(default="verify-full", metadata=about("libpq's sslmode"))

    def problems(self) -> Iterator[Problem]:
        if (self.cert is None) != (self.key is None):
            yield "cert", "`cert` and `key` must be set together"

    def parameters(self) -> dict[str, str]:
        """Return these settings by libpq's names."""
        files = {"sslrootcert": self.ca, "sslcert": self.cert, "sslkey": self.key}
        return {"sslmode": self.mode, **{name: str(path) for name, path in files.items() if path is not None}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    dsn: Dsn = field(metadata=about("Connection string of the primary, as URL or `key=value` pairs", dsn_problem))
    password: Secret | None = field(
        default=None, metadata=about("Password, if the DSN has none; not percent-encoded here")
    )
    slot: str = field(
        default="tailrace",
        metadata=about(
            "Name of the replication slot",
            matching("[a-z0-9_]{1,63}", "a slot's name is made of a-z, 0-9 and _, at most 63 of them"),
        ),
    )
    publication: str = field(
        default="tailrace",
        metadata=about(
            "Name of the publication",
            matching("[^\0]{1,63}", "a publication's name has 1 to 63 bytes"),
            lambda name: None if len(name.encode()) <= 63 else "a publication's name has 1 to 63 bytes",
        ),
    )
    tables: tuple[TableSelector, ...] = field(
        default=(TableSelector("public", None),),
        metadata=about("Tables to capture: `schema.table`, or `schema.*` for all", not_empty),
    )
    heartbeat_seconds: float = field(
        default=10,
        metadata=about("Interval between heartbeats, which advance the slot and measure lag", between(0.1, 3600)),
    )
    messages: bool = field(
        default=True,
        metadata=about("Publish `pg_logical_emit_message(…, 'name', …)` to the topic `<prefix>.name`"),
    )
    message_names: tuple[str, ...] = field(
        default=(),
        metadata=about("Message names to publish, `*` matches any text; empty: all"),
    )
    message_topics: int = field(
        default=100,
        metadata=about(
            "Maximum number of topics created for messages; further names share `<prefix>.--other`", between(0, 10_000)
        ),
    )
    allow_publication_filters: bool = field(
        default=False,
        metadata=about("Accept row filters and column lists in a publication that Tailrace did not create"),
    )
    tls: SourceTlsConfig | None = field(default=None, metadata=about("TLS settings, instead of ssl… in the DSN"))

    def problems(self) -> Iterator[Problem]:
        given = dsn_parameters(self.dsn)
        if self.password is not None and "password" in given:
            yield "password", "is in the DSN as well; set it in one place"
        for name in sorted(set(self.tls.parameters()) & set(given)) if self.tls else ():
            yield "tls", f"the DSN has {name} as well; set it in one place"

    def selects(self, schema: str, table: str) -> bool:
        return any(selector.matches(schema, table) for selector in self.tables)

    def conninfo(self, **extra: Any) -> str:
        """Return the connection string for psycopg, with the password and `extra` libpq parameters."""
        own: dict[str, Any] = self.tls.parameters() if self.tls else {}
        if self.password is not None:
            own["password"] = self.password.reveal()
        return make_conninfo(self.dsn.reveal(), **{**own, **extra})
