"""Creates a table's index in a generation, and extends it by new columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elasticsearch import Elasticsearch

from cdc.config.stores import SearchConfig as Settings
from cdc.stores.contract import Fit, Generation, PositionLostError, TableSchema, refuse_newer
from sinks.elasticsearch import mapping
from sinks.elasticsearch.client import translated_errors
from sinks.elasticsearch.generations import Generations
from sinks.elasticsearch.naming import OWN, index_of, reader_alias, writer_alias


class ElasticsearchTables:
    """Creates and extends the table indices of a store."""

    def __init__(self, client: Elasticsearch, settings: Settings, prefix: str, generations: Generations) -> None:
        self._client = client
        self._overrides = settings.mapping
        self._prefix = prefix
        self._generations = generations

    def create_all(self, generation: Generation, tables: Iterable[TableSchema]) -> None:
        """Create the tables' indices in a new generation."""
        made = []
        for table in tables:
            self._create(generation, table, mapping.fields_of(table, self._overrides), serving=False)
            made.append(index_of(self._prefix, table, generation.number))
        self._generations.record(generation, made)

    def ensure(self, generation: Generation, table: TableSchema, *, serving: bool) -> Fit:
        """Create the table's index, or add new columns to its mapping. See `cdc.stores.contract.Store.ensure_table`."""
        fields = mapping.fields_of(table, self._overrides)
        index = index_of(self._prefix, table, generation.number)
        known = self._known(index)
        if known is None:
            if index in self._generations.recorded(generation):
                raise PositionLostError(f"The index {index} is gone.", remedy="Bootstrap the store.")
            self._create(generation, table, fields, serving=serving)
        # Record the index only after creating it. Otherwise a crash in between would look like a lost index.
        self._generations.record(generation, [index])
        return Fit.READY if known is None else self._extend(index, table, fields, known)

    def _extend(self, index: str, table: TableSchema, fields: dict[str, mapping.Field], known: dict[str, Any]) -> Fit:
        added = {name: field for name, field in fields.items() if name not in known["fields"]}
        if added:
            # A dropped column stays in the mapping: old documents keep it until they are written again.
            merged = {**known["fields"], **added}
            with translated_errors():
                self._client.indices.put_mapping(
                    index=index,
                    properties=added,
                    meta={OWN: {**mapping.meta(table, merged)[OWN], "key": known["key"]}},
                )
        changed = any(known["fields"].get(name, field) != field for name, field in fields.items())
        return Fit.NEEDS_GENERATION if changed or list(table.key) != known["key"] else Fit.READY

    def _create(
        self, generation: Generation, table: TableSchema, fields: dict[str, mapping.Field], *, serving: bool
    ) -> None:
        aliases: dict[str, Any] = {writer_alias(self._prefix, table, generation): {}}
        if serving:
            alias = reader_alias(self._prefix, table)
            aliases[alias] = self._generations.reader_filter(alias)
        self._generations.create_index(
            index_of(self._prefix, table, generation.number),
            mapping.mappings(table, fields),
            self._generations.table_settings(generation),
            aliases,
        )

    def _known(self, index: str) -> dict[str, Any] | None:
        with translated_errors():
            found = self._client.options(ignore_status=404).indices.get_mapping(index=index).body
        if index not in found:
            return None
        own: dict[str, Any] = found[index]["mappings"].get("_meta", {}).get(OWN, {})
        refuse_newer(own.get("format"), mapping.META_FORMAT, f"the index {index}")
        return own
