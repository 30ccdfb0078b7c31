"""Asks each server, over its own protocol, whether it would serve a client now. Changes nothing."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from collections.abc import Callable, Mapping

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from deploy.stack.model import HOST, address_of
from deploy.versions import ELASTICSEARCH_VERSION, KAFKA_VERSION, OPENSEARCH_VERSION

TIMEOUT_SECONDS = 2


def probe(name: str, port: int) -> str | None:
    """The version of a healthy server; None where it does not answer as it should."""
    try:
        return _PROBES[name](port)
    except (OSError, psycopg.Error, redis.RedisError, http.client.HTTPException, ValueError, struct.error):
        return None


def _postgres(port: int) -> str | None:
    options = f"-c statement_timeout={TIMEOUT_SECONDS}s"
    with (
        psycopg.connect(address_of("postgres", port), connect_timeout=TIMEOUT_SECONDS, options=options) as session,
        session.cursor() as cursor,
    ):
        row = cursor.execute("SHOW server_version").fetchone()
        return str(row[0]).split()[0] if row else None


def _kafka(port: int) -> str | None:
    """A Metadata request: the broker lists itself only once it may take part in the cluster."""
    request = struct.pack(">hhih8si", 3, 1, 1, 8, b"tailrace", 0)  # key, version, id, client, no topics
    with socket.create_connection((HOST, port), timeout=TIMEOUT_SECONDS) as broker:
        broker.settimeout(TIMEOUT_SECONDS)
        broker.sendall(struct.pack(">i", len(request)) + request)
        answer = _exactly(broker, struct.unpack(">i", _exactly(broker, 4))[0])
    broker_count = struct.unpack_from(">i", answer, 4)[0]
    return KAFKA_VERSION if broker_count > 0 else None


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = source.recv(count - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def _elasticsearch(port: int) -> str | None:
    """Cluster health; `GET /` is no use, the small distribution answers 405 to it."""
    return ELASTICSEARCH_VERSION if _is_cluster_healthy(port) else None


def _opensearch(port: int) -> str | None:
    return OPENSEARCH_VERSION if _is_cluster_healthy(port) else None


def _is_cluster_healthy(port: int) -> bool:
    client = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)
    try:
        client.request("GET", "/_cluster/health")
        answer = client.getresponse()
        status = json.loads(answer.read()).get("status")
    finally:
        client.close()
    return status in {"green", "yellow"}


def _redis(port: int) -> str | None:
    client = redis.Redis(
        host=HOST,
        port=port,
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),  # the caller asks again; the client's own patience would be added to that
    )
    try:
        facts = client.info("server")
        client.ping()  # INFO answers while data is still loading, PING does not
    finally:
        client.close()
    return str(facts["redis_version"])


_PROBES: Mapping[str, Callable[[int], str | None]] = {
    "postgres": _postgres,
    "kafka": _kafka,
    "elasticsearch": _elasticsearch,
    "opensearch": _opensearch,
    "redis": _redis,
}
