"""Opens the warehouse's Iceberg catalog without Spark, and translates the errors of the underlying libraries."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from pyiceberg import exceptions as theirs

from cdc.config import IcebergConfig
from cdc.errors import RefusedError, TransientError
from sinks.iceberg import library
from sinks.iceberg.naming import CATALOG

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

#: Another process (a sync, `maintain`, a reader) may lock the file for the duration of its commit.
SQLITE_BUSY_MILLISECONDS: Final = 60_000
#: Time limits to connect to, and to get a response from, a catalog or file storage that is a server.
CONNECT_SECONDS: Final = 10
ANSWER_SECONDS: Final = 60
# Options that SQLAlchemy passes to libpq. With them the kernel detects a broken network even without a reset.
_POSTGRES_LIMITS: Final = {
    "connect_timeout": str(CONNECT_SECONDS),
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": str(ANSWER_SECONDS * 1000),
}
# If two processes open a new catalog at once, both create its tables. The second one fails and retries.
_TRIES: Final = 5


def location(warehouse: IcebergConfig) -> str:
    """Return the warehouse's URI or absolute path."""
    return warehouse.path if "://" in warehouse.path else str(Path(warehouse.path).absolute())


def sqlite_file(warehouse: IcebergConfig) -> Path | None:
    """Return the path of the SQLite catalog. None: the config names another catalog."""
    return Path(location(warehouse), "catalog.db") if warehouse.catalog_uri is None else None


def open_catalog(warehouse: IcebergConfig) -> Catalog:
    """Open the catalog. Creates the directory and the SQLite file if they do not exist."""
    file = sqlite_file(warehouse)
    if file is not None:
        prepare_sqlite(file)
    for _ in range(_TRIES):
        with iceberg_errors():
            try:
                return library.load_catalog(CATALOG, **_properties(warehouse))
            except library.SQLAlchemyError as error:
                if "already exists" not in str(error):
                    raise
    raise TransientError("Another process is creating the catalog.")


def prepare_sqlite(file: Path) -> None:
    """Create the SQLite file in WAL mode, which allows readers concurrent with one writer. The mode is persistent."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        connection = sqlite3.connect(file, timeout=SQLITE_BUSY_MILLISECONDS / 1000)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise TransientError(f"Cannot open the catalog {file}: {error}.") from error


@contextmanager
def iceberg_errors() -> Iterator[None]:
    """Raise library errors of the `with` block as TransientError, or as RefusedError if the catalog denies access."""
    try:
        yield
    except (theirs.UnauthorizedError, theirs.ForbiddenError) as error:
        raise RefusedError(
            "The catalog denies access.", remedy="Check `catalog_username` and `catalog_password` of the store."
        ) from error
    except (theirs.RESTError, library.SQLAlchemyError, OSError) as error:
        raise TransientError(f"The warehouse does not answer: {_first_line(error)}") from error


def _properties(warehouse: IcebergConfig) -> dict[str, str]:
    file = sqlite_file(warehouse)
    own = {
        "warehouse": location(warehouse),
        "s3.connect-timeout": str(CONNECT_SECONDS),
        "s3.request-timeout": str(ANSWER_SECONDS),
        **dict(warehouse.options),
    }
    if file is not None:
        seconds = SQLITE_BUSY_MILLISECONDS // 1000
        return {**own, "type": "sql", "uri": f"sqlite:///{quote(str(file))}?timeout={seconds}"}
    uri = warehouse.catalog_uri.reveal() if warehouse.catalog_uri is not None else ""
    password = warehouse.catalog_password.reveal() if warehouse.catalog_password else ""
    if uri.startswith(("http:", "https:")):
        name = warehouse.catalog_username
        return {
            **own,
            "py-catalog-impl": "sinks.iceberg.rest_catalog.TimedRestCatalog",
            "uri": uri,
            **({"credential": f"{name}:{password}" if name else password} if password else {}),
        }
    parts = urlsplit(uri)
    name, password = (
        warehouse.catalog_username or unquote(parts.username or ""),
        password or unquote(parts.password or ""),
    )
    login = (
        f"{quote(name, safe='')}:{quote(password, safe='')}@"
        if password
        else f"{quote(name, safe='')}@"
        if name
        else ""
    )
    host = parts.netloc.rpartition("@")[2]
    query = urlencode({**_POSTGRES_LIMITS, **dict(parse_qsl(parts.query, keep_blank_values=True))})
    return {**own, "type": "sql", "uri": f"postgresql+psycopg://{login}{host}{parts.path}?{query}"}


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
