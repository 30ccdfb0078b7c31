"""A table's index in a generation: made, or extended by columns that came later."""

from __future__ import annotations

from typing import Any

from elasticsearch import Elasticsearch

from cdc.config.stores import Elasticsearch as Settings
from sinks.contract import Fit, Generation, TableSchema, refuse_newer
from sinks.elasticsearch import mapping
from sinks.elasticsearch.client import translated
from sinks.elasticsearch.generations import Generations
from sinks.elasticsearch.naming import OWN, index_of, reader_alias, writer_alias


class Tables:
    def __init__(self, client: Elasticsearch, settings: Settings, prefix: str, generations: Generations) -> None:
        self._client = client
        self._overrides = settings.mapping
        self._prefix = prefix
        self._generations = generations

    def ensure(self, generation: Generation, table: TableSchema, *, serving: bool) -> Fit:
        fields = mapping.fields_of(table, self._overrides)
        known = self._known(generation, table)
        if known is None:
            self._create(generation, table, fields, serving=serving)
            return Fit.READY
        added = {name: field for name, field in fields.items() if name not in known["fields"]}
        if added:
            # A column that is gone stays in the mapping: old documents have it until they are written again.
            merged = {**known["fields"], **added}
            with translated():
                self._client.indices.put_mapping(
                    index=index_of(self._prefix, table, generation.number),
                    properties=added,
                    meta={OWN: {**mapping.meta(table, merged)[OWN], "key": known["key"]}},
                )
        changed = any(known["fields"].get(name, field) != field for name, field in fields.items())
        return Fit.NEEDS_GENERATION if changed or list(table.key) != known["key"] else Fit.READY

    def _create(
        self, generation: Generation, table: TableSchema, fields: dict[str, mapping.Field], *, serving: bool
    ) -> None:
        aliases: dict[str, Any] = {writer_alias(self._prefix, table, generation.number): {}}
        if serving:
            alias = reader_alias(self._prefix, table)
            aliases[alias] = self._generations.reader_filter(alias)
        self._generations.create_index(
            index_of(self._prefix, table, generation.number),
            mapping.mappings(table, fields),
            self._generations.table_settings(generation, len(table.columns)),
            aliases,
        )

    def _known(self, generation: Generation, table: TableSchema) -> dict[str, Any] | None:
        index = index_of(self._prefix, table, generation.number)
        with translated():
            found = self._client.options(ignore_status=404).indices.get_mapping(index=index).body
        if index not in found:
            return None
        own: dict[str, Any] = found[index]["mappings"].get("_meta", {}).get(OWN, {})
        refuse_newer(own.get("format"), mapping.META_FORMAT, f"the index {index}")
        return own
