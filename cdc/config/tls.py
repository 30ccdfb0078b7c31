"""TLS settings of a client, for Kafka and for the stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cdc.config.settings import Problem, about
from cdc.secrets import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """A TLS section; its presence enables TLS. Without `ca`, the client trusts the system's authorities."""

    ca: Path | None = field(default=None, metadata=about("PEM file of the trusted certificate authorities"))
    cert: Path | None = field(default=None, metadata=about("PEM file of the client's certificate"))
    key: Path | None = field(default=None, metadata=about("PEM file (PKCS#8) of the client's key"))
    key_password: Secret | None = field(default=None, metadata=about("Password of the key file"))
    verify_hostname: bool = field(default=True, metadata=about("Require the server's host name in its certificate"))

    def problems(self) -> Iterator[Problem]:
        if self.cert is not None and self.key is None:
            yield "cert", "needs `key` as well"
        if self.key is not None and self.cert is None:
            yield "key", "needs `cert` as well"
