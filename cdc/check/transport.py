"""The check for credentials that cross a network in clear text: one finding per connection that has credentials.

It reads the config only, and for Postgres also libpq's defaults (`PGSSLMODE`, `PGPASSWORD`). A unix socket or a
loopback address is not a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit

from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from cdc.check.findings import Finding, ok, warn
from cdc.config import (
    AlertsConfig,
    Config,
    DashboardConfig,
    ElasticsearchConfig,
    IcebergConfig,
    KafkaConfig,
    RedisConfig,
    SearchConfig,
    SourceConfig,
)
from cdc.config.stores import SyncedStoreConfig
from cdc.public_settings import is_public_option

# libpq's modes that do not encrypt, or that fall back to no encryption if the server does not support it.
_PLAIN_MODES = ("disable", "allow", "prefer")
_S3_ENDPOINTS = ("s3.endpoint", "spark.hadoop.fs.s3a.endpoint")


def judge_transport(config: Config, *, used_password: bool = False) -> Iterator[Finding]:
    """Yield the findings about all connections.

    `used_password`: the source requested a password, and libpq found one in any of its places.
    """
    yield from _source(config.source, used_password=used_password)
    yield from _kafka(config.kafka)
    for name, store in config.stores.items():
        yield from _store(f"store {name}", store, config.spark.options)
    yield from _alerts(config.alerts)
    yield from _dashboard(config.dashboard)


def is_local(host: str) -> bool:
    """Return whether data sent to this host stays on this machine. An empty host is libpq's unix socket."""
    name = host.strip().strip("[]").lower().rstrip(".")
    if not name or name[0] in "/@" or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _source(source: SourceConfig, *, used_password: bool) -> Iterator[Finding]:
    given = conninfo_to_dict(source.conninfo())
    defaults = {each.keyword.decode(): each.val.decode() for each in Conninfo.get_defaults() if each.val}
    settings = {**defaults, **{name: str(value) for name, value in given.items() if value is not None}}
    if not (used_password or settings.get("password")):
        return
    mode, hosts = settings.get("sslmode", "prefer"), settings.get("hostaddr") or settings.get("host", "")
    is_plain = mode in _PLAIN_MODES and settings.get("gssencmode") != "require"
    yield _judged(
        "server",
        is_plain=is_plain and not all(map(is_local, hosts.split(","))),
        what=f"The password and all rows may cross the network to Postgres in clear text (sslmode is {mode}).",
        remedy="Set [source.tls] with `ca` (or sslmode=verify-full in the DSN), and `ssl = on` at the server.",
    )


def _kafka(kafka: KafkaConfig) -> Iterator[Finding]:
    protocol = kafka.options.get("security.protocol", kafka.security_protocol).upper()
    if not protocol.startswith("SASL_"):
        return
    hosts = [server.strip().rpartition(":")[0] for server in kafka.bootstrap.split(",")]
    mechanism = kafka.sasl.mechanism if kafka.sasl is not None else kafka.options.get("sasl.mechanism", "")
    sent = "All records go to Kafka in clear text, and an attacker can take over the connection"
    if mechanism == "PLAIN":
        sent = "The password and all records go to Kafka in clear text"
    yield _judged(
        "broker",
        is_plain=protocol == "SASL_PLAINTEXT" and not all(map(is_local, hosts)),
        what=f"{sent} (SASL_PLAINTEXT with {mechanism}).",
        remedy="Set [kafka.tls], and set [kafka] bootstrap to a SASL_SSL listener of the brokers.",
    )


def _store(place: str, store: SyncedStoreConfig, spark: Mapping[str, str]) -> Iterator[Finding]:
    if isinstance(store, SearchConfig):
        api_key = store.api_key if isinstance(store, ElasticsearchConfig) else None
        has_credentials = bool(store.username or api_key) or _has_login(store.url.reveal())
        what = "The user's password or the API key goes to the search server in clear text (http)."
        remedy = "Give the store an https:// url, and [stores.NAME.tls] with `ca` for a private certificate authority."
        yield from _judged_url(place, store.url.reveal(), what, remedy, has_credentials=has_credentials)
    elif isinstance(store, RedisConfig):
        has_credentials = store.password is not None or _has_login(store.url.reveal())
        what = "The password goes to Redis in clear text (redis://)."
        remedy = "Give the store a rediss:// url, and [stores.NAME.tls] with `ca` for a private certificate authority."
        yield from _judged_url(place, store.url.reveal(), what, remedy, has_credentials=has_credentials)
    elif isinstance(store, IcebergConfig):
        yield from _warehouse(place, store, spark)


def _warehouse(place: str, store: IcebergConfig, spark: Mapping[str, str]) -> Iterator[Finding]:
    uri = store.catalog_uri.reveal() if store.catalog_uri is not None else ""
    has_secrets = any(not is_public_option(name) for name in store.options)
    has_credentials = store.catalog_password is not None or _has_login(uri) or (has_secrets and uri.startswith("http"))
    if uri.startswith("postgres"):
        mode = parse_qs(urlsplit(uri).query).get("sslmode", ["prefer"])[0]
        if has_credentials:
            yield _judged(
                place,
                is_plain=mode in _PLAIN_MODES and not is_local(urlsplit(uri).hostname or ""),
                what=f"The catalog's password may go to Postgres in clear text (sslmode is {mode}).",
                remedy="Add ?sslmode=verify-full to the store's catalog_uri, and set `ssl = on` at the server.",
            )
    elif uri:
        what = "Credentials go to the REST catalog, and the catalog's own credentials come back, in clear text (http)."
        remedy = "Give the store an https:// catalog_uri."
        yield from _judged_url(place, uri, what, remedy, has_credentials=has_credentials)
    for name in _S3_ENDPOINTS:
        endpoint = store.options.get(name) or spark.get(name, "")
        what = f"All rows and session tokens go to the object storage in clear text ({name} is http)."
        remedy = f"Give {name} an https:// URL."
        yield from _judged_url(place, endpoint, what, remedy, has_credentials=bool(endpoint))


def _alerts(alerts: AlertsConfig) -> Iterator[Finding]:
    if alerts.webhook is None:
        return
    url = alerts.webhook.reveal()
    has_credentials = _has_login(url) or any(not is_public_option(name) for name in alerts.headers)
    what = "The values of [alerts.headers] go to the webhook in clear text (http)."
    yield from _judged_url(
        "alerts", url, what, "Give [alerts] webhook an https:// URL.", has_credentials=has_credentials
    )


def _dashboard(dashboard: DashboardConfig) -> Iterator[Finding]:
    if dashboard.enabled and dashboard.token is not None:
        yield _judged(
            "dashboard",
            is_plain=not is_local(dashboard.host),
            what=f"It listens on {dashboard.host} without TLS: browsers send the token in clear text.",
            remedy="Leave [dashboard] host at 127.0.0.1, and put a proxy with TLS in front of it.",
        )


def _judged_url(place: str, url: str, what: str, remedy: str, *, has_credentials: bool) -> Iterator[Finding]:
    """Yield the finding about a URL. A connection without credentials has none."""
    parts = urlsplit(url)
    if has_credentials:
        is_plain = parts.scheme in ("http", "redis") and not is_local(parts.hostname or "")
        yield _judged(place, is_plain=is_plain, what=what, remedy=remedy)


def _judged(place: str, *, is_plain: bool, what: str, remedy: str) -> Finding:
    if is_plain:
        return warn(place, what, remedy)
    return ok(place, "its credentials are encrypted, or do not leave this machine")


def _has_login(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.password or (parts.username and parts.scheme in ("http", "https")))
