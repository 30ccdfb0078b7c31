"""Translates a warehouse's settings into Spark's properties for its Iceberg catalog. Pure functions.

The catalog's name is part of its data: a JDBC catalog stores it with every table. So every reader must use this name.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from cdc.config import IcebergConfig
from sinks.iceberg.catalog import ANSWER_SECONDS, CONNECT_SECONDS, SQLITE_BUSY_MILLISECONDS, location, sqlite_file
from sinks.iceberg.naming import CATALOG as NAME

__all__ = ["NAME", "catalog_settings"]

# Without this, Iceberg looks for a missing table among the views, and raises an error about views.
_VIEWS = {"jdbc.schema-version": "V1"}
# Iceberg's HTTP client and Postgres's driver (whose limits are in seconds) wait without limit by default.
_REST_LIMITS = {
    "rest.client.connection-timeout-ms": str(CONNECT_SECONDS * 1000),
    "rest.client.socket-timeout-ms": str(ANSWER_SECONDS * 1000),
}
_POSTGRES_LIMITS = {
    "jdbc.connectTimeout": str(CONNECT_SECONDS),
    "jdbc.socketTimeout": str(ANSWER_SECONDS),
    "jdbc.tcpKeepAlive": "true",
}


def catalog_settings(warehouse: IcebergConfig) -> dict[str, str]:
    """Return the catalog's properties for a session.

    They hold passwords, so they must be set at run time and never on a command line.
    """
    # No cache: other processes commit as well, so cached table metadata would be stale.
    own = {"cache-enabled": "false", **_limits(warehouse), **dict(warehouse.options), **_catalog(warehouse)}
    own["warehouse"] = location(warehouse)
    prefix = f"spark.sql.catalog.{NAME}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{name}": value for name, value in own.items()},
    }


def _limits(warehouse: IcebergConfig) -> dict[str, str]:
    scheme = urlsplit(warehouse.catalog_uri.reveal()).scheme if warehouse.catalog_uri is not None else "sqlite"
    return {"http": _REST_LIMITS, "https": _REST_LIMITS, "sqlite": {}}.get(scheme, _POSTGRES_LIMITS)


def _catalog(warehouse: IcebergConfig) -> dict[str, str]:
    file = sqlite_file(warehouse)
    if file is not None or warehouse.catalog_uri is None:
        patience = f"busy_timeout={SQLITE_BUSY_MILLISECONDS}&journal_mode=WAL"
        return {"type": "jdbc", "uri": f"jdbc:sqlite:{file}?{patience}", **_VIEWS}
    parts = urlsplit(warehouse.catalog_uri.reveal())
    if parts.scheme in ("http", "https"):
        return {"type": "rest", "uri": warehouse.catalog_uri.reveal(), **_rest_credential(warehouse)}
    host = parts.hostname if ":" not in (parts.hostname or "") else f"[{parts.hostname}]"
    port = f":{parts.port}" if parts.port else ""
    query = f"?{parts.query}" if parts.query else ""
    settings = {"type": "jdbc", "uri": f"jdbc:postgresql://{host}{port}{parts.path}{query}", **_VIEWS}
    # The JDBC driver does not read user and password from the URL's authority.
    username = warehouse.catalog_username or unquote(parts.username or "")
    password = warehouse.catalog_password.reveal() if warehouse.catalog_password else unquote(parts.password or "")
    if username:
        settings["jdbc.user"] = username
    if password:
        settings["jdbc.password"] = password
    return settings


def _rest_credential(warehouse: IcebergConfig) -> dict[str, str]:
    """Return OAuth's client credentials in the REST catalog's form, `id:secret`."""
    if warehouse.catalog_password is None:
        return {}
    secret = warehouse.catalog_password.reveal()
    return {"credential": f"{warehouse.catalog_username}:{secret}" if warehouse.catalog_username else secret}
