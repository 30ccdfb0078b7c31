"""The warehouse's catalog, opened without Spark. Trouble of every library underneath becomes ours here."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from cdc.config import IcebergConfig
from cdc.errors import RefusedError, TransientError
from sinks.iceberg.naming import CATALOG

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

#: Another process (a sync, a maintenance, a reader) may hold the file for as long as its commit takes.
SQLITE_BUSY_MILLISECONDS: Final = 60_000
#: For a catalog or a file storage that is a server: how long until it is connected to, and until it answers.
CONNECT_SECONDS: Final = 10
ANSWER_SECONDS: Final = 60
# As SQLAlchemy passes them on to libpq. A cut network without a reset is noticed by the kernel.
_POSTGRES_LIMITS: Final = {
    "connect_timeout": str(CONNECT_SECONDS),
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": str(ANSWER_SECONDS * 1000),
}
# Two that open a new catalog at once both make its tables; the second one finds them.
_TRIES: Final = 5


def location(warehouse: IcebergConfig) -> str:
    return warehouse.path if "://" in warehouse.path else str(Path(warehouse.path).absolute())


def sqlite_file(warehouse: IcebergConfig) -> Path | None:
    return Path(location(warehouse), "catalog.db") if warehouse.catalog_uri is None else None


def open_catalog(warehouse: IcebergConfig) -> Catalog:
    """Makes the folder and the SQLite file where there is none."""
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - a second; only who asks a warehouse needs it
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as above

    file = sqlite_file(warehouse)
    if file is not None:
        prepare_sqlite(file)
    for _ in range(_TRIES):
        with iceberg_errors():
            try:
                return load_catalog(CATALOG, **_properties(warehouse))
            except SQLAlchemyError as error:
                if "already exists" not in str(error):
                    raise
    raise TransientError("The catalog is being made by somebody else.")


def prepare_sqlite(file: Path) -> None:
    """Readers and one writer side by side: the file remembers it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        connection = sqlite3.connect(file, timeout=SQLITE_BUSY_MILLISECONDS / 1000)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise TransientError(f"The catalog {file} cannot be opened: {error}.") from error


@contextmanager
def iceberg_errors() -> Iterator[None]:
    """What passes is a TransientError; what a person must mend is refused."""
    from pyiceberg import exceptions as theirs  # noqa: PLC0415 - as above
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as above

    try:
        yield
    except (theirs.UnauthorizedError, theirs.ForbiddenError) as error:
        raise RefusedError(
            "The catalog denies access.", remedy="Look at `catalog_username` and `catalog_password` of the store."
        ) from error
    except (theirs.RESTError, SQLAlchemyError, OSError) as error:
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
