"""Checks whether an Elasticsearch cluster can be a store: health, version, privileges and write blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from elasticsearch import ApiError

from cdc.errors import RefusedError, TransientError
from cdc.stores.contract import StoreCheck
from sinks.elasticsearch.client import error_type, translated_errors
from sinks.elasticsearch.clients import SearchClient
from sinks.elasticsearch.generations import Generations

_NEEDED: Final = (
    "create_index",
    "delete_index",
    "index",
    "delete",
    "read",
    "view_index_metadata",
    "manage",
)


def check_elasticsearch(client: SearchClient, prefix: str) -> Iterator[StoreCheck]:
    """Yield the result of every check of the cluster. Changes nothing."""
    try:
        yield from _health(client)
        yield from _version(client)
        yield from _privileges(client, prefix)
        yield from _blocks(client, prefix)
    except RefusedError as error:
        yield StoreCheck("fail", error.message, error.remedy)


def check_serving(generations: Generations) -> Iterator[StoreCheck]:
    """Check that the indices that readers see are the ones that the sync wrote. Yields a warning if they are not."""
    try:
        number = generations.serving_number()
        reason = generations.why_lost(number) if number is not None else None
    except TransientError as error:
        yield StoreCheck("warn", error.message.rstrip("."), error.remedy)
        return
    except RefusedError:  # `check_elasticsearch` has reported the reason
        return
    if reason is not None:
        yield StoreCheck(
            "warn",
            f"the serving generation {number} is lost: {reason.rstrip('.')}",
            "The sync builds a new generation from the topics and switches readers to it. Or run `tailrace bootstrap`.",
        )


def _health(client: SearchClient) -> Iterator[StoreCheck]:
    with translated_errors():
        health = client.cluster.health().body
    what = f"cluster {health['cluster_name']} answers and is {health['status']}"
    if health["status"] == "red":
        yield StoreCheck("warn", what, "Restore the missing primary shards: writes to them wait.")
    else:
        yield StoreCheck("ok", what)


def _version(client: SearchClient) -> Iterator[StoreCheck]:
    try:
        nodes = client.nodes.info(filter_path="nodes.*.version").body.get("nodes", {})
    except ApiError as error:
        yield StoreCheck(
            "warn",
            f"the server does not show its version to this user ({error_type(error.body)})",
            "Grant the cluster privilege `monitor`.",
        )
        return
    for version in sorted({node["version"] for node in nodes.values()}):
        number = tuple(int(part) for part in version.split(".")[:2])
        if number >= client.oldest:
            yield StoreCheck("ok", f"version {version}")
        else:
            yield StoreCheck(
                "fail",
                f"version {version} is too old",
                f"Use {client.product} {client.oldest[0]}.{client.oldest[1]} or later.",
            )


def _privileges(client: SearchClient, prefix: str) -> Iterator[StoreCheck]:
    """Check the index privileges. A server without security does not support the request, and needs no privileges."""
    pattern = f"{prefix}.*"
    if not client.has_privileges_api:
        return
    try:
        answer = client.security.has_privileges(index=[{"names": [pattern], "privileges": list(_NEEDED)}]).body
    except ApiError as error:
        if error.status_code in (400, 404, 405, 500, 501):
            yield StoreCheck("ok", "security is off: every privilege is granted")
        else:
            yield StoreCheck(
                "fail", f"the server denies access (status {error.status_code})", "Check the user or API key."
            )
        return
    missing = sorted(name for name, granted in answer["index"][pattern].items() if not granted)
    if missing:
        yield StoreCheck(
            "fail",
            f"privileges on {pattern} are missing: {', '.join(missing)}",
            "Grant the privileges of the role in docs/reference/stores.md.",
        )
    else:
        yield StoreCheck("ok", f"all privileges on {pattern}")


def _blocks(client: SearchClient, prefix: str) -> Iterator[StoreCheck]:
    with translated_errors():
        found = client.indices.get_settings(
            index=f"{prefix}.*",
            name="index.blocks.*",
            flat_settings=True,
            expand_wildcards="open",
            allow_no_indices=True,
        ).body
    blocked = sorted(
        index
        for index, body in found.items()
        if any(value == "true" for name, value in body["settings"].items() if name.startswith("index.blocks."))
    )
    if blocked:
        yield StoreCheck(
            "fail", f"indices are blocked for writes: {', '.join(blocked)}", "Free disk space, or remove the block."
        )
