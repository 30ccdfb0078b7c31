"""The sampled audit: compares random rows continuously, at a fixed rate, without Spark.

A sample consists of the rows of a few blocks of a table, looked up in each store, and a few rows of each store, looked
up in the source. The audit does not read the topic, so it does not compare versions. One comparison reads the row from
the source, waits until the store has everything up to that read, reads the store, and reads the source again. If the
source's row is the same in both reads and the store's row differs, the comparison failed. A row counts as wrong after
two failed comparisons.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import psycopg

from cdc.audit.audit_log import keep
from cdc.audit.audit_records import AuditRecord, Difference
from cdc.audit.catch_up import wait_for_stores
from cdc.audit.recheck import content_of, read_schemas_of, why_unjudged
from cdc.audit.row_content import Content
from cdc.audit.source_rows import SourceRead, fence, read_source_rows
from cdc.clock import now_ms
from cdc.config import Config
from cdc.errors import TransientError
from cdc.logs import get_logger
from cdc.lsn import LSN
from cdc.postgres.connection import explain
from cdc.publishing.parked import RowName, names_of
from cdc.snapshot.chunk_plan import read_sizes
from cdc.snapshot.copy_rows import LineEncoder
from cdc.snapshot.records import BlockRange
from cdc.snapshot.rows_by_key import key_of_id
from cdc.snapshot.source_reader import Readable, at_snapshot, lines, lock
from cdc.snapshot.table_description import DescribedTable, describe_tables
from cdc.stores.contract import StoredRow, TableSchema
from cdc.stores.registry import is_auditable, is_table_kind, open_scan, open_store
from cdc.stores.row_ids import row_id_of
from cdc.stores.scan import StoreScan
from cdc.tables.state_reader import read_recorded_states

log = get_logger("audit")

_TURN_SECONDS = 5.0
_SHOWN = 1000
_ROUNDS = 4
_AGREEING = 2
_MOST_BLOCKS = 20


@dataclass(slots=True)
class _Tally:
    """The results for one store and table since the process started.

    `wrong`: by id, the rows that differ. A row leaves it when a later sample finds it equal.
    """

    started_ms: int
    rows: int = 0
    wrong: dict[str, Difference] = field(default_factory=dict)


class ContinuousAudit:
    """Samples rows in turns of about five seconds, and records the results on `__audits`.

    `warehouses`: audit only the stores that Spark writes (Iceberg), or only the others. They have separate audits so
    that the wait for a warehouse's batches does not delay the other stores. `parked`: returns the names of rows that
    are parked, and so are known to be missing in a store or in their topic.
    """

    def __init__(
        self,
        config: Config,
        *,
        rows_per_second: int,
        timeout_seconds: float = 60.0,
        warehouses: bool = False,
        parked: Callable[[], Collection[RowName]] = frozenset,
    ) -> None:
        self._config = config
        self._parked = parked
        self._warehouses = warehouses
        self._rows = rows_per_second
        self._timeout = timeout_seconds
        self._chance = random.SystemRandom()
        self._tallies: dict[tuple[str, str], _Tally] = {}

    def run(self, stop: threading.Event) -> None:
        """Run turns until `stop` is set. After a transient error, the next turn retries."""
        while not stop.is_set():
            began = time.monotonic()
            try:
                self.turn()
            except TransientError as error:
                log.warning("retrying", reason=str(error))
            stop.wait(max(0.2, _TURN_SECONDS - (time.monotonic() - began)))

    def turn(self) -> None:
        """Compare one sample of one random table in every store that has it: about five seconds' worth of rows."""
        states = read_recorded_states(self._config)
        oids = [oid for oid, state in states.tables.items() if state.key] if states is not None else []
        if states is None or not oids:
            return
        oid = self._chance.choice(oids)
        topic = states.tables[oid].topic
        schemas = read_schemas_of(self._config).get(topic)
        if topic in states.pending or schemas is None:
            return
        with ExitStack() as opened:
            scans = dict(self._scans(schemas.last, opened))
            if scans:
                records = list(self._compare(oid, schemas.last, scans))
                keep(self._config, records)

    def _scans(self, table: TableSchema, opened: ExitStack) -> Iterator[tuple[str, StoreScan]]:
        """Open scans of the reachable stores that hold the table's rows untransformed."""
        for name, settings in self._config.stores.items():
            is_shaped = settings.shape_of(table.schema, table.table) is not None
            if (
                not is_auditable(settings.kind)
                or is_table_kind(settings.kind) != self._warehouses
                or is_shaped
                or not settings.gets(table.schema, table.table)
            ):
                continue
            try:
                with closing(open_store(name, settings, self._config.kafka.prefix)) as store:
                    serving = store.serving()
            except TransientError as error:
                log.info("store_left_out", store=name, reason=error.message)
                continue
            if serving is not None:
                scan = open_scan(name, settings, self._config.kafka.prefix, serving)
                yield name, opened.enter_context(closing(scan))

    def _compare(self, oid: str, schema: TableSchema, scans: Mapping[str, StoreScan]) -> Iterator[AuditRecord]:
        count = max(1, int(self._rows * _TURN_SECONDS) // (len(scans) + 1))
        keys = self._sampled_keys(oid, count)
        seen = read_source_rows(self._config, oid, [])
        reason = why_unjudged(self._config, oid, schema.topic, seen)
        if seen.table is None or reason:
            return
        for name, scan in scans.items():
            tally = self._tallies.setdefault((name, schema.topic), _Tally(now_ms()))
            held = [key for row in scan.sample(schema, count) if (key := key_of_id(seen.table, row.id)) is not None]
            known = [key for each in tally.wrong if (key := key_of_id(seen.table, each)) is not None]
            chosen = {row_id_of(key): key for key in [*keys, *held, *known]}
            if not scan.is_cheap(schema, list(chosen)):
                chosen = {row_id_of(key): key for key in keys}
                if not scan.is_cheap(schema, list(chosen)):
                    log.debug("sample_left_out", store=name, table=str(schema))
                    continue
            tally.rows += len(chosen)
            lsn, wrong = self._wrong(oid, schema, name, scan, chosen)
            if wrong is None:
                continue
            wrong = self._without_parked(name, schema.topic, wrong, chosen)
            tally.wrong = {each: difference for each, difference in tally.wrong.items() if each not in chosen} | wrong
            yield self._record(name, schema, tally, lsn)

    def _wrong(
        self, oid: str, schema: TableSchema, name: str, scan: StoreScan, chosen: Mapping[str, bytes]
    ) -> tuple[int, dict[str, Difference] | None]:
        """Return an LSN, and by id the chosen rows that truly differ. None: the table cannot be compared now."""
        open_ids = dict.fromkeys(chosen, 0)
        found: dict[str, Difference] = {}
        before = self._poll(oid, schema, chosen)
        for _ in range(_ROUNDS):
            if before is None or not open_ids:
                break
            wait_for_stores(self._config, [name], before.ended, self._timeout)
            held = scan.rows(schema, list(open_ids))
            after = self._poll(oid, schema, {each: chosen[each] for each in open_ids})
            if after is None or after.table is None:
                return 0, None
            schemas = read_schemas_of(self._config).get(schema.topic)
            if schemas is None or schemas.last != schema:
                return 0, None
            content = content_of(after.table, schemas, scan.spelled(schema))
            for each in list(open_ids):
                row = before.rows.get(chosen[each])
                if row != after.rows.get(chosen[each]):
                    open_ids[each] = 0
                    continue
                difference = self._difference(name, each, row, held.get(each), content)
                open_ids[each] += 1
                if difference is None:
                    del open_ids[each]
                elif open_ids[each] >= _AGREEING:
                    found[each] = difference
                    del open_ids[each]
            before = after
        return (0, None) if before is None else (before.ended, found)

    def _without_parked(
        self, name: str, topic: str, wrong: dict[str, Difference], chosen: Mapping[str, bytes]
    ) -> dict[str, Difference]:
        if not wrong:
            return wrong
        known = set(self._parked())
        return {
            each: difference
            for each, difference in wrong.items()
            if difference.kind == "extra"
            or not known & (names_of(name, topic, chosen[each]) | names_of("", topic, chosen[each]))
        }

    def _poll(self, oid: str, schema: TableSchema, chosen: Mapping[str, bytes]) -> SourceRead | None:
        seen = read_source_rows(self._config, oid, set(chosen.values()))
        fence(self._config)
        return None if why_unjudged(self._config, oid, schema.topic, seen) else seen

    def _difference(
        self, name: str, row_id_of: str, row: bytes | None, held: StoredRow | None, content: Content
    ) -> Difference | None:
        stored = held.row if held is not None else None
        if content.same(row, stored):
            return None
        settings = self._config.stores[name]
        kind, fields = "content", list[str]()
        if stored is None:
            if settings.evicts_rows:
                return None
            kind = "missing"
        elif row is None:
            kind = "extra"
        else:
            fields = content.differing_fields(row, stored)
        version = str(held.version) if held is not None else ""
        return Difference(id=row_id_of, kind=kind, wrong="store", fields=fields, store_version=version)

    def _sampled_keys(self, oid: str, count: int) -> list[bytes]:
        """Return up to `count` keys from random blocks of the table.

        For a warehouse, all keys come from one block: rows that were written together are in few data files.
        """
        try:
            with at_snapshot(self._config.source.conninfo(), None) as connection:
                table = describe_tables(connection, self._config, [oid]).get(oid)
                return [] if table is None or not table.leaves else self._keys(connection, table, count)
        except psycopg.Error as error:
            raise TransientError(f"Postgres: {explain(error)}") from error

    def _keys(self, connection: psycopg.Connection, table: DescribedTable, count: int) -> list[bytes]:
        sizes = read_sizes(connection, [table])
        leaf = self._chance.choice(table.leaves)
        blocks = max(1, sizes[leaf.relation.oid].heap_bytes // 8192)
        encoder = LineEncoder(table.table(leaf.relation), b"", b"")
        readable = lock(connection, table, leaf, encoder.columns)
        if not isinstance(readable, Readable):
            return []
        found: list[bytes] = []
        for _ in range(1 if self._warehouses else min(blocks, _MOST_BLOCKS)):
            first = self._chance.randrange(blocks)
            piece = BlockRange(table=table.oid, relation=leaf.relation.oid, first_block=first, end_block=first + 1)
            for some in lines(connection, readable, piece, encoder.columns):
                found += [key for key, _ in encoder.encode(some)]
            if len(found) >= count:
                break
        return found[:count]

    def _record(self, name: str, schema: TableSchema, tally: _Tally, lsn: int) -> AuditRecord:
        return AuditRecord(
            store=name,
            table=str(schema),
            topic=schema.topic,
            verdict="drift" if tally.wrong else "equal",
            lsn=str(LSN(lsn)),
            started_ms=tally.started_ms,
            seconds=round(time.time() - tally.started_ms / 1000, 3),
            source_rows=tally.rows,
            store_rows=tally.rows,
            differing=len(tally.wrong),
            differences=list(tally.wrong.values())[:_SHOWN],
            sampled=True,
        ).stamped()
