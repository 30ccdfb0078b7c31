"""Every client has a time limit of ours, and not its library's default, which may be none."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from cdc.config import IcebergConfig
from cdc.config.settings import Location
from cdc.config.stores import ElasticsearchConfig, RedisConfig
from cdc.errors import TransientError
from cdc.secrets import SecretOptions, Url
from sinks.elasticsearch import client as elasticsearch_client
from sinks.iceberg import catalog, rest_catalog
from sinks.redis import client as redis_client


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_silent_catalog_is_given_up(silent_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A REST catalog that accepts the connection and does not answer is a transient error."""
    monkeypatch.setattr(rest_catalog, "ANSWER_SECONDS", 0.2)
    warehouse = IcebergConfig(path=Location("s3://bucket/w"), catalog_uri=Url(silent_server))
    with pytest.raises(TransientError, match="does not answer"):
        catalog.open_catalog(warehouse)


def test_a_catalog_in_postgres_and_files_in_s3_have_limits() -> None:
    """Postgres catalogs and S3 clients have time limits, and a user's option takes precedence."""
    uri = Url("postgresql://me@host/db?sslmode=require&connect_timeout=3")
    properties = catalog._properties(IcebergConfig(path=Location("s3://bucket/w"), catalog_uri=uri))
    assert "connect_timeout=3&" in properties["uri"]
    assert "tcp_user_timeout=60000" in properties["uri"]
    assert properties["uri"].endswith("sslmode=require")
    assert (properties["s3.connect-timeout"], properties["s3.request-timeout"]) == ("10", "60")
    own = IcebergConfig(path=Location("s3://b/w"), catalog_uri=uri, options=SecretOptions({"s3.request-timeout": "5"}))
    assert catalog._properties(own)["s3.request-timeout"] == "5"


def test_stores_clients_have_limits() -> None:
    """Clients of stores have limits for the connection and for the answer."""
    made = redis_client.open_redis(RedisConfig(url=Url("redis://127.0.0.1:1/0")))
    found: dict[str, Any] = made.connection_pool.connection_kwargs
    assert (found["socket_connect_timeout"], found["socket_timeout"]) == (
        redis_client.CONNECT_SECONDS,
        redis_client.ANSWER_SECONDS,
    )
    with elasticsearch_client.open_elasticsearch(ElasticsearchConfig(url=Url("http://127.0.0.1:1"))) as opened:
        assert opened._request_timeout == elasticsearch_client.REQUEST_SECONDS
