"""TRUNCATE markers: one document per table in the generation's state index.

Writers ignore changes with a smaller version than the table's marker, so truncated rows never come back.
"""

from __future__ import annotations

from elastic_transport import TransportError
from elasticsearch import ApiError, Elasticsearch

from cdc.lsn import Version
from cdc.stores.contract import Generation, PositionLostError, TableSchema
from sinks.elasticsearch.client import api_error, translated_errors, transport_error
from sinks.elasticsearch.naming import own_index, own_writer_alias
from sinks.elasticsearch.writing.external_versions import VersionScheme


def read_marker(client: Elasticsearch, prefix: str, generation: Generation, table: TableSchema) -> Version | None:
    """Return the version of the table's TRUNCATE marker. None: the table was not truncated."""
    with translated_errors():
        found = client.options(ignore_status=404).get(index=own_index(prefix, generation.number), id=_id(table)).body
    if "found" not in found:
        raise PositionLostError(f"{generation} of the store is gone.")
    return Version.parse(found["_source"]["version"]) if found["found"] else None


def write_marker(
    client: Elasticsearch,
    prefix: str,
    generation: Generation,
    table: TableSchema,
    version: Version,
    numbering: VersionScheme,
) -> None:
    """Write a TRUNCATE marker. The larger version stays: the server rejects the smaller one, which is not an error."""
    found = read_marker(client, prefix, generation, table)
    if found is not None and found >= version:  # an older Tailrace may have numbered the version differently
        return
    try:
        client.index(
            index=own_writer_alias(prefix, generation),
            id=_id(table),
            document={"version": str(version)},
            version=numbering.number(version),
            version_type="external_gte",
            require_alias=True,
        )
    except ApiError as error:
        if error.status_code != 409:
            raise api_error(error) from error
    except TransportError as error:
        raise transport_error(error) from error


def _id(table: TableSchema) -> str:
    return f"truncated:{table.topic}"
