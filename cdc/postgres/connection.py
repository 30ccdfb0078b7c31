"""Connections to the source database, and error messages for failed ones.

Every session that reads row text sets the same parameters (`SESSION_SETTINGS`). A value therefore has
the same text whether it comes from the stream, a re-select or a snapshot.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.errors import RefusedError, TransientError
from cdc.secrets import redact

# The session parameters that give Postgres's text output the format that the encoders expect.
# Each parameter changes the text output of some type. The encoders raise an error for text in another format.
SESSION_SETTINGS: dict[str, str] = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    "xmlbinary": "base64",
}

# The kernel detects a network failure without a TCP reset within these limits.
_LIVENESS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

# Timeouts that a role or database may set. They would end sessions of Tailrace that wait or idle for a good reason:
# creating a slot waits for every open transaction, and the session that holds a snapshot idles in a transaction. Code
# that needs a timeout sets it for its own statements.
_NO_TIMEOUTS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
)

# The server's counterpart of `_LIVENESS`. If the client's host loses power, the server releases the client's slot and
# locks after a minute instead of the kernel's two hours. (On a Unix socket these settings have no effect.)
_SERVER_LIVENESS = {"tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10, "tcp_keepalives_count": 3}

# Texts of connection errors that a retry cannot repair. libpq returns no SQLSTATE for most of them. ("SSL error" alone
# is not in the list, because an interrupted handshake causes it, too.)
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


def startup_options() -> str:
    """Return `SESSION_SETTINGS` as `options` of a connection string. They override settings of a role or database."""
    settings = ((name, value.replace(" ", "\\ ")) for name, value in SESSION_SETTINGS.items())
    return " ".join(f"-c {name}={value}" for name, value in settings)


def connect(conninfo: str, **parameters: Any) -> psycopg.Connection:
    """Open an autocommit connection with Tailrace's session settings.

    Options in the connection string override the timeouts and the TCP keepalives of the server, but no other setting.

    Raises RefusedError if a retry cannot succeed (wrong password, missing role), TransientError otherwise.
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
                f"Postgres rejects the connection: {text}",
                remedy="Correct the [source] settings or the role, then start again.",
            ) from None
        raise TransientError(f"Postgres cannot be reached: {text}") from None


def explain(error: psycopg.Error) -> str:
    """Return the error's text as one line, without passwords."""
    return redact(" ".join(str(error).split())) or type(error).__name__
