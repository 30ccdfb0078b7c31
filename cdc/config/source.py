"""`[source]`: the Postgres database, the slot and the tables to read, and the connection string for psycopg."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cdc.config.settings import Problem, about, between, matching, not_empty
from cdc.config.tables import TableSelector
from cdc.secrets import Dsn, Secret

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]


def _dsn_problem(dsn: Dsn) -> str | None:
    from cdc.config.dsn import dsn_problem  # noqa: PLC0415 - psycopg takes 0.2 s to import; only a load needs it

    return dsn_problem(dsn)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTlsConfig:
    """libpq's TLS settings; the DSN may carry them as well (`sslmode=…`), but not both."""

    ca: Path | None = field(default=None, metadata=about("PEM file of the authorities to trust"))
    cert: Path | None = field(default=None, metadata=about("PEM file of the client's certificate"))
    key: Path | None = field(default=None, metadata=about("PEM file of the client's key"))
    mode: SslMode = field(default="verify-full", metadata=about("libpq's sslmode"))

    def problems(self) -> Iterator[Problem]:
        if (self.cert is None) != (self.key is None):
            yield "cert", "`cert` and `key` go together"

    def parameters(self) -> dict[str, str]:
        """libpq's names for these settings."""
        files = {"sslrootcert": self.ca, "sslcert": self.cert, "sslkey": self.key}
        return {"sslmode": self.mode, **{name: str(path) for name, path in files.items() if path is not None}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    dsn: Dsn = field(metadata=about("Connection string of the primary, as URL or `key=value` pairs", _dsn_problem))
    password: Secret | None = field(
        default=None, metadata=about("Password, when it is not in the DSN; needs no percent-encoding here")
    )
    slot: str = field(
        default="tailrace",
        metadata=about(
            "Replication slot",
            matching("[a-z0-9_]{1,63}", "a slot's name is made of a-z, 0-9 and _, at most 63 of them"),
        ),
    )
    publication: str = field(
        default="tailrace",
        metadata=about(
            "Publication",
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
        metadata=about("How often a heartbeat moves the slot and measures lag", between(0.1, 3600)),
    )
    messages: bool = field(
        default=True,
        metadata=about("Whether `pg_logical_emit_message(…, 'name', …)` is published to the topic `<prefix>.name`"),
    )
    message_names: tuple[str, ...] = field(
        default=(),
        metadata=about("Names of messages that are published, `*` for any text; without it all"),
    )
    message_topics: int = field(
        default=100,
        metadata=about(
            "Most topics that messages make by themselves; further names share `<prefix>.--other`", between(0, 10_000)
        ),
    )
    allow_publication_filters: bool = field(
        default=False,
        metadata=about("Accept row filters and column lists in a publication that was made by hand"),
    )
    tls: SourceTlsConfig | None = field(default=None, metadata=about("TLS settings, instead of ssl… in the DSN"))

    def problems(self) -> Iterator[Problem]:
        from cdc.config.dsn import dsn_parameters  # noqa: PLC0415 - as above

        given = dsn_parameters(self.dsn)
        if self.password is not None and "password" in given:
            yield "password", "is in the DSN as well; give it once"
        for name in sorted(set(self.tls.parameters()) & set(given)) if self.tls else ():
            yield "tls", f"the DSN has {name} as well; give it once"

    def selects(self, schema: str, table: str) -> bool:
        return any(selector.matches(schema, table) for selector in self.tables)

    def conninfo(self, **extra: Any) -> str:
        """The connection string for psycopg, with `extra` libpq parameters; the password is in it."""
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - as above

        own: dict[str, Any] = self.tls.parameters() if self.tls else {}
        if self.password is not None:
            own["password"] = self.password.reveal()
        return make_conninfo(self.dsn.reveal(), **{**own, **extra})
