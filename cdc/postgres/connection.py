"""Connections to the source: one way to open them, one way to say why that failed.

Every session that yields row text sets the same parameters (`values.SESSION_SETTINGS`), so that a value has one text
whether it comes from the stream, a re-select or a copy.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.errors import RefusedError, TransientError
from cdc.postgres.session_settings import startup_options
from cdc.secrets import redact

# A cut network without a reset is noticed by the kernel within this bound.
_LIVENESS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

# A role's or database's own would end sessions of ours that wait or idle for good reason: making a slot waits for every
# open transaction, the session that holds a snapshot idles in one. Where a limit is wanted, it is set where it is.
_NO_TIMEOUTS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
)

# The server's side of `_LIVENESS`: a client whose host lost power gives its slot and its locks back after a minute, not
# after the kernel's two hours. (On a Unix socket they mean nothing.)
_SERVER_LIVENESS = {"tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10, "tcp_keepalives_count": 3}

# Connection errors that another try cannot mend. libpq gives no code for most of them. (An "SSL error" as such may be a
# handshake that was cut off.)
_PERMANENT_ERRORS = (
    "password authentication failed",
    "authentication failed",
    "no pg_hba.conf entry",
    "does not exist",
    "no password supplied",
    "certificate",
    "wrong version number",
    "unsupported protocol",
    "no protocols available",
    "alert protocol version",
    "alert handshake failure",
    "alert unknown ca",
    "alert no application protocol",
    "no shared cipher",
    "no cipher match",
    "private key file",
    "server does not support SSL",
    "must be superuser or replication role",
    "permission denied",
    "is not permitted to log in",
)


def connect(conninfo: str, **parameters: Any) -> psycopg.Connection:
    """An autocommit connection with our session settings.

    The options of the connection string outrank the time limits, and nothing else.
    """
    limits = {**dict.fromkeys(_NO_TIMEOUTS, 0), **_SERVER_LIVENESS}
    unless_given = " ".join(f"-c {name}={value}" for name, value in limits.items())
    own_options = str(conninfo_to_dict(conninfo).get("options") or "")
    options = " ".join([unless_given, own_options, startup_options(), "-c row_security=off"])
    try:
        return psycopg.connect(
            make_conninfo(conninfo, options=options, **{**_LIVENESS, **parameters}),
            autocommit=True,
            prepare_threshold=None,
        )
    except psycopg.OperationalError as error:
        text = explain(error)
        if any(words in text for words in _PERMANENT_ERRORS):
            raise RefusedError(
                f"Postgres does not let us in: {text}",
                remedy="Mend the [source] settings or the role, then start again.",
            ) from None
        raise TransientError(f"Postgres cannot be reached: {text}") from None


def explain(error: psycopg.Error) -> str:
    """One line, without anything secret."""
    return redact(" ".join(str(error).split())) or type(error).__name__
