"""Generations in Elasticsearch: lists, creates and drops them, and switches readers atomically.

A generation consists of a state index and one index per table. The state index is created first and deleted last, so
that an incomplete generation is still found. Only the aliases decide which generation serves. The server changes all
aliases in one atomic step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from elastic_transport import TransportError
from elasticsearch import ApiError, Elasticsearch

from cdc.clock import now_ms
from cdc.config.stores import SearchConfig as Settings
from cdc.errors import RefusedError, TransientError
from cdc.stores.contract import Generation, Position, PositionLostError, refuse_newer
from sinks.elasticsearch import identities
from sinks.elasticsearch.client import api_error, error_type, translated_errors, transport_error
from sinks.elasticsearch.naming import OWN, own_alias, own_index, own_writer_alias, split_generation
from sinks.elasticsearch.writing.documents import live
from sinks.elasticsearch.writing.external_versions import NARROW, VersionScheme, numbering_after

#: Format 1 is release 0.1.0's, which has no `identities` and no `narrow_to`.
OWN_FORMAT: Final = 2
_GREEN_OR_YELLOW: Final = "yellow"
_HEALTH_SECONDS: Final = 60


class Generations:
    """The generations of one store."""

    def __init__(self, client: Elasticsearch, settings: Settings, prefix: str, store: str) -> None:
        self._client = client
        self._settings = settings
        self._prefix = prefix
        self._store = store

    def all(self) -> list[Generation]:
        """Return all generations, oldest first."""
        with translated_errors():
            found = self._client.indices.get_mapping(
                index=f"{own_alias(self._prefix)}-g*", allow_no_indices=True, expand_wildcards="open"
            ).body
        return sorted(self._generation(index, body["mappings"]) for index, body in found.items())

    def serving(self) -> Generation | None:
        """Return the generation that readers see, or None if its indices are no longer the ones that were written."""
        number = self.serving_number()
        return self.present_number(number) if number is not None and self.why_lost(number) is None else None

    def serving_number(self) -> int | None:
        """Return the number of the generation to which the aliases point, even if it is lost.

        None if the aliases point to none or to two generations. A restore from a snapshot can bring old aliases back.
        """
        with translated_errors():
            client = self._client.options(ignore_status=404)
            found = client.indices.get_alias(name=own_alias(self._prefix), expand_wildcards=["open", "closed"]).body
        numbers = [split[1] for index in found if (split := split_generation(index))]
        return numbers[0] if len(numbers) == 1 else None

    def refuse_lost(self, generation: Generation) -> None:
        """Raise PositionLostError if the generation is lost (see `why_lost`)."""
        reason = self.why_lost(generation.number)
        if reason is not None:
            raise PositionLostError(f"{generation} is lost. {reason}")

    def present(self, generation: Generation) -> Generation:
        """Return the generation in its present state. The caller's value may predate `settle`."""
        found = self.present_number(generation.number)
        if found is None:
            raise PositionLostError(f"{generation} of the store is gone.")
        return found

    def present_number(self, number: int) -> Generation | None:
        """Return the generation with this number, or None."""
        return next((each for each in self.all() if each.number == number), None)

    def why_lost(self, number: int) -> str | None:
        """Return why the generation's indices are not, or not all, the ones that were written. None: they are.

        Raises TransientError if this cannot be determined now.
        """
        found = identities.read_found_indices(self._client, self._pattern(number))
        own_name = own_index(self._prefix, number)
        if own_name in found and not found[own_name].is_open:
            own: dict[str, Any] = {"tables": []}
        elif (known := self._known_own_meta(number)) is None:
            return f"The index {own_name} is gone."
        else:
            own = known
        names = [own_name, *own["tables"]]
        if not found.keys() >= set(names):
            found = identities.look_without_shards(self._client, self._pattern(number)) | found
        return identities.why_lost(found, names, own.get("identities", {}))

    def record(self, generation: Generation, indices: Iterable[str]) -> None:
        """Record the created indices and their identities, so that a later check detects a lost or replaced index."""
        self._record(generation, self._own_meta(generation), indices)

    def adopt(self, generation: Generation, position: Position) -> None:
        """Upgrade a generation that an older Tailrace created: record the identities of its indices and its numbering.

        The older Tailrace recorded only the names of the indices, and numbered versions differently.
        """
        own = self._own_meta(generation)
        if "narrow_to" not in own:
            own |= {"format": OWN_FORMAT, "narrow_to": numbering_after(position.version.position).narrow_to}
            self._put_own_meta(generation, own)
        self._record(generation, own, [])

    def numbering(self, generation: Generation) -> VersionScheme:
        """Return the numbering for versions that are written to this generation from now on."""
        narrow_to = self._own_meta(generation).get("narrow_to")
        return NARROW if narrow_to is None else VersionScheme(narrow_to)

    def _record(self, generation: Generation, own: dict[str, Any], indices: Iterable[str]) -> None:
        tables = sorted({*own["tables"], *indices})
        known: dict[str, Any] = own.get("identities", {})
        unknown = [name for name in (own_index(self._prefix, generation.number), *tables) if name not in known]
        if unknown:
            known = known | identities.read_identities(self._client, self._pattern(generation.number), unknown)
        if tables != own["tables"] or unknown:
            self._put_own_meta(generation, {**own, "tables": tables, "identities": known})

    def recorded(self, generation: Generation) -> list[str]:
        """Return the names of the table indices that were created in this generation."""
        tables: list[str] = self._own_meta(generation)["tables"]
        return tables

    def create(self) -> Generation:
        """Create the state index of a generation with the next free number."""
        number = max((each.number for each in self.all()), default=0)
        while True:
            number += 1
            created_ms = now_ms()
            generation = Generation(number, created_ms, "loading")
            settings = {"number_of_shards": 1, **self._copies()}
            aliases: dict[str, Any] = {own_writer_alias(self._prefix, generation): {}}
            if self.create_index(own_index(self._prefix, number), self._own_mappings(generation), settings, aliases):
                return generation

    def create_index(
        self, index: str, mappings: dict[str, Any], settings: dict[str, Any], aliases: dict[str, Any]
    ) -> bool:
        """Create an index. Returns False if it already exists."""
        try:
            self._client.indices.create(index=index, mappings=mappings, settings=settings, aliases=aliases)
        except ApiError as error:
            if error_type(error.body) == "resource_already_exists_exception":
                return False
            raise api_error(error) from error
        except TransportError as error:
            raise transport_error(error) from error
        return True

    def table_settings(self, generation: Generation) -> dict[str, Any]:
        """Return the settings of a new table index. While loading it has no replicas and no periodic refresh."""
        own: dict[str, Any] = {
            "number_of_shards": self._settings.shards,
            # A table has at most 1,600 columns, but dropped columns stay in the mapping.
            "mapping.total_fields.limit": 10_000,
            "translog.durability": "request",
        }
        if generation.state == "loading":
            return {**own, "refresh_interval": "-1", "number_of_replicas": 0}
        return {**own, **self._for_serving()}

    def settle(self, generation: Generation) -> Generation:
        """Apply the settings for serving: replicas and refresh interval. All writes are visible when this returns."""
        for index in self.table_indices(generation):
            with translated_errors():
                self._client.indices.put_settings(index=index, settings=self._for_serving())
                self._client.indices.refresh(index=index)
        own = self._own_meta(generation)
        if own["state"] != "settled":
            self._put_own_meta(generation, {**own, "state": "settled"})
        return generation._replace(state="settled")

    def switch(self, generation: Generation) -> None:
        """Switch all aliases in one atomic request, so that a reader never sees tables of two generations."""
        if self.present(generation).state != "settled":
            self.settle(generation)
        self.refuse_lost(generation)
        mine = [*self.table_indices(generation), own_index(self._prefix, generation.number)]
        wanted = {split[0]: index for index in mine if (split := split_generation(index))}
        with translated_errors():
            health = self._client.options(ignore_status=408, request_timeout=_HEALTH_SECONDS + 30).cluster.health(
                index=self._pattern(generation.number),
                wait_for_status=_GREEN_OR_YELLOW,
                timeout=f"{_HEALTH_SECONDS}s",
            )
            if health["timed_out"]:
                raise TransientError(f"{generation} has primary shards that are not available.")
            present = self._client.indices.get_alias(index=f"{self._prefix}.*", expand_wildcards="open").body
            actions: list[dict[str, Any]] = []
            for index, body in present.items():
                split = split_generation(index)
                if split is not None and split[0] in body["aliases"] and wanted.get(split[0]) != index:
                    actions.append({"remove": {"index": index, "alias": split[0]}})
            for alias, index in wanted.items():
                actions.append({"add": {"index": index, "alias": alias, **self.reader_filter(alias)}})
            self._client.indices.update_aliases(actions=actions)

    def reader_filter(self, alias: str) -> dict[str, Any]:
        """Return an alias's filter, which hides tombstones. The alias of the state index has no filter."""
        return {} if alias == own_alias(self._prefix) else {"filter": live()}

    def drop(self, generation: Generation) -> None:
        """Delete the generation's indices, the state index last. Raises RefusedError for the serving generation."""
        if self.serving_number() == generation.number:
            raise RefusedError(f"{generation} serves readers and cannot be dropped.")
        for index in [*self.table_indices(generation), own_index(self._prefix, generation.number)]:
            with translated_errors():
                self._client.options(ignore_status=404).indices.delete(index=index)

    def table_indices(self, generation: Generation) -> list[str]:
        """Return the names of the generation's table indices that exist and are open, sorted."""
        with translated_errors():
            found = self._client.indices.get_alias(
                index=self._pattern(generation.number), expand_wildcards="open", allow_no_indices=True
            ).body
        return sorted(index for index in found if index != own_index(self._prefix, generation.number))

    def _own_mappings(self, generation: Generation) -> dict[str, Any]:
        own = {
            "format": OWN_FORMAT,
            "store": self._store,
            "created_ms": generation.created_ms,
            "state": generation.state,
            "tables": [],
            "narrow_to": 0,
        }
        kept_only = {"topics": {"type": "object", "enabled": False}}
        return {"dynamic": False, "_meta": {OWN: own}, "properties": kept_only}

    def _own_meta(self, generation: Generation) -> dict[str, Any]:
        own = self._known_own_meta(generation.number)
        if own is None:
            raise PositionLostError(f"{generation} of the store is gone.")
        return own

    def _known_own_meta(self, number: int) -> dict[str, Any] | None:
        index = own_index(self._prefix, number)
        with translated_errors():
            found = self._client.options(ignore_status=404).indices.get_mapping(index=index).body
        own: dict[str, Any] | None = found[index]["mappings"]["_meta"][OWN] if index in found else None
        return own

    def _pattern(self, number: int) -> str:
        return f"{self._prefix}.*-g{number}"

    def _put_own_meta(self, generation: Generation, own: dict[str, Any]) -> None:
        with translated_errors():
            self._client.indices.put_mapping(index=own_index(self._prefix, generation.number), meta={OWN: own})

    def _generation(self, index: str, mappings: dict[str, Any]) -> Generation:
        own = mappings.get("_meta", {}).get(OWN, {})
        refuse_newer(own.get("format"), OWN_FORMAT, f"the index {index}")
        if own["store"] != self._store:
            raise RefusedError(
                f"{index} belongs to a store named `{own['store']}`, not `{self._store}`.",
                remedy="Set a different `prefix` for this store, or use the old name.",
            )
        split = split_generation(index)
        return Generation(split[1] if split else 0, own["created_ms"], own["state"])

    def _for_serving(self) -> dict[str, Any]:
        return {"refresh_interval": f"{self._settings.refresh_milliseconds}ms", **self._copies()}

    def _copies(self) -> dict[str, Any]:
        if self._settings.replicas is None:
            return {"auto_expand_replicas": "0-1"}
        return {"auto_expand_replicas": False, "number_of_replicas": self._settings.replicas}
