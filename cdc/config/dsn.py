"""Validation of connection strings. Messages never quote the string: libpq's own messages quote parts of passwords."""

from __future__ import annotations

import difflib
import re

from psycopg import Error, ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from cdc.secrets import Dsn

_QUOTED = re.compile(r'".*"', re.DOTALL)
_UNKNOWN_OPTION = re.compile(r'invalid (?:connection option|URI query parameter):? "(.*)"', re.DOTALL)
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_URL_STARTS = ("postgresql://", "postgres://")
_OPTIONS = (
    *("host", "hostaddr", "port", "dbname", "user", "password", "passfile", "service", "options"),
    *("connect_timeout", "client_encoding", "application_name", "target_session_attrs", "keepalives"),
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "channel_binding"),
)


def dsn_parameters(dsn: Dsn) -> dict[str, str]:
    """Return the DSN's parameters by libpq's names. Raises `psycopg.Error` for a DSN that libpq cannot parse."""
    return {name: str(value) for name, value in conninfo_to_dict(dsn.reveal()).items() if value is not None}


def dsn_problem(dsn: Dsn) -> str | None:
    if not dsn:
        return "must not be empty"
    try:
        given = dsn_parameters(dsn)
    except Error as error:
        return _syntax_problem(error)
    text = dsn.reveal()
    return _parameter_problem(given, url=text.startswith(_URL_STARTS) and "%40" not in text)


def _syntax_problem(error: Error) -> str:
    text = str(error).strip()
    unknown = _UNKNOWN_OPTION.match(text)
    if unknown is not None:
        # Show only known option names: what libpq takes for an option's name may be the end of a password.
        near = difflib.get_close_matches(unknown[1], _OPTIONS, n=1, cutoff=0.8)
        return "has an unknown connection option" + (f"; did you mean {near[0]}?" if near else "")
    if isinstance(error, ProgrammingError) and 'missing "="' in text:
        return "is not a connection string: write postgresql://user@host:port/database, or key=value pairs"
    return f"is not a connection string: {_QUOTED.sub('…', text)}"


def _parameter_problem(given: dict[str, str], *, url: bool) -> str | None:
    # A host may begin with @ (an abstract socket). A database name may contain @, but a URL must encode it.
    if "@" in given.get("host", "")[1:] or (url and "@" in given.get("dbname", "")):
        return (
            "has an @ or / in the wrong place; percent-encode such characters of a password in a URL "
            "(or set the password as [source] password)"
        )
    for port in given.get("port", "").split(","):
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            return "has a port that is not a number from 1 to 65535"
    if given.get("sslmode", "disable") not in _SSL_MODES:
        return f"has an unknown sslmode; it is one of {', '.join(_SSL_MODES)}"
    if "replication" in given:
        return "must not set `replication`: capture sets it"
    return None
