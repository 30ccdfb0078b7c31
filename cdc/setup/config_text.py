"""The commented config file that `init` writes. The comment on a key is the key's own documentation.

The file never contains a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, urlencode

from psycopg.conninfo import make_conninfo

from cdc.config import KafkaConfig, SourceConfig, TableSelector
from cdc.config.toml.reader import settings_of
from cdc.config.toml.report import toml_value
from cdc.setup.survey import FoundTable, Survey

PASSWORD_VARIABLE = "TAILRACE_PASSWORD"  # noqa: S105 - the name of a variable
# TOML allows no control characters in a comment, but a table's name may contain them.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def config_text(
    found: Survey, *, dsn: str, password: bool, slot: str, publication: str, bootstrap: str, prefix: str
) -> str:
    """Return the text of the config. `dsn` has no password. `password`: whether the environment provides one."""
    lines = [
        "# Written by `tailrace init`. docs/reference/config.md lists all keys; `tailrace config` prints all values.",
        "",
        "[source]",
        *_key(SourceConfig, "dsn", _escaped(dsn)),
        *_password(password),
        *_key(SourceConfig, "slot", slot),
        *_key(SourceConfig, "publication", _escaped(publication)),
        *_tables(found),
        "",
        "[kafka]",
        *_key(KafkaConfig, "bootstrap", bootstrap),
        *_key(KafkaConfig, "prefix", prefix),
        *_key(KafkaConfig, "partitions", 4),
        *_key(KafkaConfig, "replication_factor", 1),
        *_STORES,
    ]
    return "\n".join(lines) + "\n"


_STORES = """
# [kafka.tls]                         # an empty section means TLS with the system's certificate authorities
# [kafka.sasl]
# username = "tailrace"
# password = "${KAFKA_PASSWORD}"

# [mask]                              # columns that capture masks: hash, null, fixed:TEXT
# "public.customers.email" = "hash"

# [stores.search]
# kind = "elasticsearch"
# url = "http://localhost:9200"

# [stores.cache]
# kind = "redis"
# url = "redis://localhost:6379/0"

# [stores.warehouse]
# kind = "iceberg"
# path = "warehouse"
""".rstrip().split("\n")


def dsn_text(parameters: dict[str, str]) -> str:
    """Return a URL if there is one host, else `key=value` pairs (for sockets, several hosts or a service)."""
    rest = dict(parameters)
    host, user, database = (rest.pop(name, "") for name in ("host", "user", "dbname"))
    port = rest.pop("port", "")
    if not all((host, user, database)) or not re.fullmatch(r"[A-Za-z0-9.:-]+", host):
        return make_conninfo(**parameters)
    place = f"[{host}]" if ":" in host else host
    url = f"postgresql://{quote(user, safe='')}@{place}{f':{port}' if port else ''}/{quote(database, safe='')}"
    return f"{url}?{urlencode(rest, quote_via=quote)}" if rest else url


def _key(section: type, name: str, value: str | int) -> Iterator[str]:
    yield f"# {settings_of(section)[name][0].metadata['doc']}"
    yield f"{name} = {toml_value(value)}"


def _password(wanted: bool) -> Iterator[str]:
    yield "# The password comes from the environment, so that this file never contains it."
    yield f'{"" if wanted else "# "}password = "${{{PASSWORD_VARIABLE}}}"'


def _tables(found: Survey) -> Iterator[str]:
    yield f"# {settings_of(SourceConfig)['tables'][0].metadata['doc']}"
    yield "# The row counts are the server's estimates."
    yield "tables = ["
    if not found.capturable:
        yield '  "public.*",'
    written = [(_entry(table), table) for table in found.tables]
    width = max((len(entry) for entry, _ in written), default=0)
    for entry, table in written:
        obstacle = table.obstacle
        if obstacle is None:
            yield f"  {entry:<{width}}  # {_described(table)}"
        else:
            why = _comment(f"Left out: {obstacle[0]}. {obstacle[1]}")
            yield f"  # {entry:<{width}}  {_described(table)}. {why}"
    yield "]"


def _entry(table: FoundTable) -> str:
    return toml_value(_escaped(str(TableSelector(table.schema, table.name)))) + ","


def _described(table: FoundTable) -> str:
    rows = "rows unknown" if table.rows_estimate is None else f"{table.rows_estimate:,} rows"
    parts = [rows, _size(table.size_bytes)]
    if table.kind == "p":
        parts.append(f"{table.partitions} partitions")
    if table.obstacle is None and table.wanted_identity:
        parts.append(f"needs replica identity {table.wanted_identity}")
    return ", ".join(parts)


def _size(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def _escaped(text: str) -> str:
    """Return `text` with `${` escaped, which starts a variable in the config."""
    return text.replace("${", "$${")


def _comment(text: str) -> str:
    return _CONTROL.sub(lambda character: f"\\x{ord(character[0]):02x}", text)
