"""Removes everything that a test left under its prefix, so that the servers stay as they were."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import redis


def delete_indices(url: str, prefix: str) -> None:
    _, rows = request("GET", f"{url}/_cat/indices/{prefix}.*?format=json&h=index")
    for row in rows:
        request("DELETE", f"{url}/{row['index']}")


def request(method: str, url: str) -> tuple[int, Any]:
    """Send one plain HTTP request to Elasticsearch; returns status and JSON."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=30)
    try:
        connection.request(method, f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        return answer.status, json.load(answer)
    finally:
        connection.close()


def delete_keys(url: str, prefix: str) -> None:
    with redis.Redis.from_url(url) as client:
        keys = list(client.scan_iter(match=f"{prefix}:*", count=1_000))
        if keys:
            client.delete(*keys)
