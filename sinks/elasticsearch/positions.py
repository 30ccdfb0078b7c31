"""A generation's position: one document in its state index. Only the driver that wrote it last can replace it.

`if_seq_no` makes each write a compare-and-set. The response to a successful write may be lost. So after a conflict the
driver reads the document, which may be its own write.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from elastic_transport import TransportError
from elasticsearch import ApiError, Elasticsearch

from cdc.clock import now_ms
from cdc.stores.contract import (
    POSITION_FORMAT,
    Generation,
    Position,
    PositionLostError,
    position_changed_error,
    refuse_newer,
)
from sinks.elasticsearch.client import api_error, translated_errors, transport_error
from sinks.elasticsearch.naming import own_index, own_writer_alias

_ID: Final = "position"


class Positions:
    """Reads and writes positions. Remembers the position that this driver wrote last, for each generation."""

    def __init__(self, client: Elasticsearch, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._held: dict[int, tuple[Position, int, int]] = {}

    def create(self, generation: Generation, pipeline_id: str) -> None:
        """Write the first position of a new generation."""
        self._write(generation, Position(pipeline_id=pipeline_id, written_ms=now_ms()), create=True)

    def read(self, generation: Generation) -> Position | None:
        """Return the stored position, or None if there is none."""
        found = self._read(generation.number)
        return None if found is None else found[0]

    def take(self, generation: Generation, owner: str) -> Position:
        """Write `owner` into the position. Retries if another process changes the position at the same time."""
        while True:
            found = self._read(generation.number)
            if found is None:
                raise PositionLostError(f"{generation} of the store is gone.")
            position, seq_no, term = found
            mine = msgspec.structs.replace(position, owner=owner)
            written = self._write(generation, mine, seq_no=seq_no, term=term)
            if written is not None:
                self._held[generation.number] = (mine, *written)
                return mine

    def save(self, generation: Generation, position: Position) -> Position:
        """Replace the position that this object took or saved last. See `cdc.stores.contract.Store.save_position`."""
        held, seq_no, term = self._held[generation.number]
        new = msgspec.structs.replace(position, owner=held.owner, format=POSITION_FORMAT, written_ms=now_ms())
        written = self._write(generation, new, seq_no=seq_no, term=term)
        if written is None:
            written = self._after_conflict(generation, held, new)
        self._held[generation.number] = (new, *written)
        return new

    def _after_conflict(self, generation: Generation, held: Position, new: Position) -> tuple[int, int]:
        found = self._read(generation.number)
        if found is None:
            raise PositionLostError(f"{generation} of the store is gone.")
        position, seq_no, term = found
        if position == new:
            return seq_no, term
        raise position_changed_error(position, held)

    def _read(self, number: int) -> tuple[Position, int, int] | None:
        with translated_errors():
            found: dict[str, Any] = (
                self._client.options(ignore_status=404).get(index=own_index(self._prefix, number), id=_ID).body
            )
        if not found.get("found"):
            return None
        refuse_newer(found["_source"].get("format"), POSITION_FORMAT, "the store's position")
        return msgspec.convert(found["_source"], Position), found["_seq_no"], found["_primary_term"]

    def _write(
        self,
        generation: Generation,
        position: Position,
        *,
        seq_no: int | None = None,
        term: int | None = None,
        create: bool = False,
    ) -> tuple[int, int] | None:
        """Write the document, and return its new sequence number and primary term. None: a conflict."""
        try:
            answer = self._client.index(
                index=own_writer_alias(self._prefix, generation),
                id=_ID,
                document=msgspec.to_builtins(position),
                if_seq_no=seq_no,
                if_primary_term=term,
                op_type="create" if create else None,
                require_alias=True,
            )
        except ApiError as error:
            if error.status_code == 409:
                return None
            raise api_error(error) from error
        except TransportError as error:
            raise transport_error(error) from error
        return answer["_seq_no"], answer["_primary_term"]
