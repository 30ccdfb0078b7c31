"""Generations and positions in Redis: one hash per store, such as `shop:__tailrace:cache`.

Its fields are `format`, `last` (the last generation's number), `serving`, and for each generation N `generation:N`,
`position:N` and `table:N:TOPIC`.

A driver replaces a position only if the stored text is still the one that this driver wrote last, and only on the
server on which it took the generation. A server that was restarted or promoted since then may have lost acknowledged
rows.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
import redis

from cdc.clock import now_ms
from cdc.errors import RefusedError
from cdc.stores.contract import (
    POSITION_FORMAT,
    Fit,
    Generation,
    Position,
    PositionLostError,
    TableSchema,
    position_changed_error,
    refuse_newer,
)
from sinks.redis import scripts
from sinks.redis.client import Script, translated
from sinks.redis.naming import markers_key, name_key, state_key
from sinks.redis.writer import refuse_moved

FORMAT: Final = 1


class RedisState:
    """Reads and writes a store's generations and positions."""

    def __init__(self, client: redis.Redis, prefix: str, store: str) -> None:
        self._client = client
        self._store = store
        self._key = state_key(prefix, store)
        self._name_key = name_key(prefix)
        self._markers_key = markers_key(prefix)
        self._save = Script(client, scripts.SAVE)
        self._held: dict[int, tuple[bytes, str]] = {}

    def generations(self) -> list[Generation]:
        """Return the generations that have a position, oldest first. One without a position is left from a flush."""
        fields = self._fields()
        names = [name.partition(":") for name in fields]
        numbers = sorted(int(number) for word, _, number in names if word == "position")
        return [_generation(number, fields[f"generation:{number}"]) for number in numbers]

    def serving(self) -> Generation | None:
        """Return the generation that readers see, or None."""
        number = int(self._fields().get("serving", b"0"))
        return next((each for each in self.generations() if each.number == number), None)

    def create(self, pipeline_id: str) -> Generation:
        """Create a generation with an empty position. Raises RefusedError if the prefix belongs to another store."""
        created_ms = now_ms()
        empty = msgspec.json.encode(Position(pipeline_id=pipeline_id, written_ms=created_ms))
        serving = self.serving()
        before = self.position(serving) if serving is not None else None
        answer = Script(self._client, scripts.CREATE)(
            [self._key, self._name_key, self._markers_key],
            [self._store, created_ms, empty, FORMAT, pipeline_id, before.pipeline_id if before is not None else ""],
        )
        if not isinstance(answer, int):
            raise RefusedError(
                f"The keys under this prefix belong to a store named `{answer.decode()}`, not `{self._store}`.",
                remedy="Set a different `prefix` for this store, or use the old name.",
            )
        return Generation(answer, created_ms, "loading")

    def serves_another_pipeline(self) -> bool:
        """Whether readers still see a generation of another pipeline than the one whose rows are written now."""
        with translated():
            first: Any = self._client.hget(self._markers_key, "__from")
        serving = self.serving()
        return int(first or 0) > max(1, serving.number if serving is not None else 0)

    def settle(self, generation: Generation, *, serve: bool = False) -> Generation:
        """Mark the generation as settled. If `serve`, also make it the serving generation, in the same step."""
        settled = generation._replace(state="settled")
        text = msgspec.json.encode({"created_ms": settled.created_ms, "state": settled.state})
        if not Script(self._client, scripts.SETTLE)([self._key], [generation.number, text, int(serve)]):
            raise PositionLostError(f"{generation} of the store is gone.")
        return settled

    def drop(self, generation: Generation) -> None:
        """Remove the generation's fields. Raises RefusedError for the serving generation."""
        serving = self.serving()
        if serving is not None and serving.number == generation.number:
            raise RefusedError(f"{generation} serves readers and cannot be dropped.")
        own = (f"generation:{generation.number}", f"position:{generation.number}")
        tables = f"table:{generation.number}:"
        gone = [name for name in self._fields() if name in own or name.startswith(tables)]
        if gone:
            with translated():
                self._client.hdel(self._key, *gone)

    def ensure_table(self, generation: Generation, table: TableSchema) -> Fit:
        """Record the table's primary key, and compare it with the recorded one.

        Redis stores no columns, so other schema changes need no work. A changed primary key needs a new generation,
        because rows with ids of the old key would otherwise stay for ever.
        """
        field, text = f"table:{generation.number}:{table.topic}", msgspec.json.encode(table.key)
        with translated():
            self._client.hsetnx(self._key, field, text)
            known = self._client.hget(self._key, field)
        return Fit.READY if known == text else Fit.NEEDS_GENERATION

    def position(self, generation: Generation) -> Position | None:
        """Return the stored position, or None if the generation is gone."""
        text = self._text(generation)
        return None if text is None else _decode(text)

    def take(self, generation: Generation, owner: str) -> Position:
        """Write `owner` into the position, and remember the server. Retries if the position or the server changes."""
        while True:
            server = self._server()
            found = self._text(generation)
            if found is None:
                raise PositionLostError(f"{generation} of the store is gone.")
            mine = msgspec.structs.replace(_decode(found), owner=owner)
            text = msgspec.json.encode(mine)
            if not self._save([self._key], [server, generation.number, found, text]):
                self._held[generation.number] = (text, server)
                return mine

    def save(self, generation: Generation, position: Position) -> Position:
        """Replace the position that this object took or saved last. See `cdc.stores.contract.Store.save_position`."""
        held, server = self._held[generation.number]
        mine = _decode(held)
        new = msgspec.structs.replace(position, owner=mine.owner, format=POSITION_FORMAT, written_ms=now_ms())
        text = msgspec.json.encode(new)
        problem = self._save([self._key], [server, generation.number, held, text])
        if problem:
            refuse_moved(problem)
            raise _why(problem, generation, mine)
        self._held[generation.number] = (text, server)
        return new

    def server_of(self, generation: Generation) -> str:
        """Return the server on which the generation was taken, in the scripts' format. "": it was not taken."""
        return self._held.get(generation.number, (b"", ""))[1]

    def _server(self) -> str:
        """Return the run ID and the replication ID, separated by a colon. An id that INFO does not show is "".

        The run ID identifies the server process. The replication ID changes when a server is promoted to primary.
        """
        with translated():
            server: Any = self._client.info("server")
            replication: Any = self._client.info("replication")
        return f"{server.get('run_id', '')}:{replication.get('master_replid', '')}"

    def _text(self, generation: Generation) -> bytes | None:
        with translated():
            found: bytes | None = cast("Any", self._client.hget(self._key, f"position:{generation.number}"))
        return found

    def _fields(self) -> dict[str, bytes]:
        """Read all fields with one command, so that a concurrent flush cannot show half of them. There are few."""
        with translated():
            found: Any = self._client.hgetall(self._key)
        if found:
            refuse_newer(int(found.get(b"format", b"1")), FORMAT, "the store's state")
        return {name.decode(): value for name, value in found.items()}


def _generation(number: int, text: bytes) -> Generation:
    own = msgspec.json.decode(text)
    return Generation(number, own["created_ms"], own["state"])


def _why(problem: bytes, generation: Generation, mine: Position) -> Exception:
    if problem == b"lost":
        return PositionLostError(f"{generation} of the store is gone: it was flushed or dropped.")
    return position_changed_error(_decode(problem), mine)


def _decode(text: bytes) -> Position:
    refuse_newer(msgspec.json.decode(text).get("format"), POSITION_FORMAT, "the store's position")
    return msgspec.json.decode(text, type=Position)
