"""TLS of a client, the same three files for Kafka and for the stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cdc.config.settings import Problem, about
from cdc.secrets import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """The section's presence turns TLS on; without `ca` the system's authorities are trusted."""

    ca: Path | None = field(default=None, metadata=about("PEM file of the authorities to trust"))
    cert: Path | None = field(default=None, metadata=about("PEM file of the client's certificate"))
    key: Path | None = field(default=None, metadata=about("PEM file (PKCS#8) of the client's key"))
    key_password: Secret | None = field(default=None, metadata=about("Password of the key file"))
    verify_hostname: bool = field(
        default=True, metadata=about("Whether the server's certificate must carry its host name")
    )

    def problems(self) -> Iterator[Problem]:
        if self.cert is not None and self.key is None:
            yield "cert", "needs `key` as well"
        if self.key is not None and self.cert is None:
            yield "key", "needs `cert` as well"
