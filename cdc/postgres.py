"""Connections to the source: one way to open them, one way to say why that failed.

Every session that yields row text sets the same parameters (`values.SESSION_SETTINGS`), so that a value has one text
whether it comes from the stream, a re-select or a copy.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.errors import RefusedError, TransientError
from cdc.secrets import redact
from cdc.values import startup_options

# A cut network without a reset is noticed by the kernel within this bound.
_LIVENESS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

# Connection errors that another try cannot mend. libpq gives no code for most of them.
_HOPELESS = (
    "password authentication failed",
    "authentication failed",
    "no pg_hba.conf entry",
    "does not exist",
    "no password supplied",
    "certificate",
    "SSL error",
    "server does not support SSL",
    "must be superuser or replication role",
    "permission denied",
    "is not permitted to log in",
)


def connect(conninfo: str, **parameters: Any) -> psycopg.Connection:
    """An autocommit connection with our session settings."""
    own_options = str(conninfo_to_dict(conninfo).get("options") or "")
    options = " ".join([own_options, startup_options(), "-c row_security=off"])
    try:
        return psycopg.connect(
            make_conninfo(conninfo, options=options, **{**_LIVENESS, **parameters}),
            autocommit=True,
            prepare_threshold=None,
        )
    except psycopg.OperationalError as error:
        text = explain(error)
        if any(words in text for words in _HOPELESS):
            raise RefusedError(
                f"Postgres does not let us in: {text}",
                remedy="Mend the [source] settings or the role, then start again.",
            ) from None
        raise TransientError(f"Postgres cannot be reached: {text}") from None


def explain(error: psycopg.Error) -> str:
    """One line, without anything secret."""
    return redact(" ".join(str(error).split())) or type(error).__name__
