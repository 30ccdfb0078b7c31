"""Resolves a Relation message to a `TableEncoder`: finds the table, its key and its published columns.

The message has the columns at the time the rows were written. The catalog has the present ones. So the columns come
from the message. The catalog provides what the message lacks: the order of the key columns, the partitioned table of a
partition, and whether the key is deferrable. If the catalog no longer matches, the last recorded state is used.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psycopg

from cdc import names
from cdc.config import Config
from cdc.config.tables import TableName
from cdc.encoding.masks import masks_of
from cdc.encoding.table_encoder import Shape, TableEncoder
from cdc.encoding.values import load_types
from cdc.errors import RefusedError
from cdc.logs import get_logger
from cdc.pgoutput.messages import Relation, ReplicaIdentity
from cdc.postgres import catalog
from cdc.tables.catalog_state import read_catalog_states
from cdc.tables.mask_rules import refuse_lost_mask
from cdc.tables.recorded_state import TableState, TableStates

log = get_logger("tables")


class TableResolver:
    """Resolves relations with the catalog and the recorded states."""

    def __init__(self, config: Config, connection: psycopg.Connection[Any]) -> None:
        self._config = config
        self._connection = connection

    def table_for(self, relation: Relation, states: TableStates, topics: Collection[str]) -> TableEncoder | None:
        """Return the encoder of a relation's table, or None if the table was dropped (with its rows) or has no key.

        `topics`: the existing topics. A table that has a topic but is no longer published was removed from the
        pipeline. Rows that were written before belong to that topic.
        """
        root = catalog.root_of(self._connection, relation.oid)
        now = None if root is None else self._state(root.oid)
        known = states.root_of(relation.oid)
        before = None if root is None else states.tables.get(str(root.oid))
        # A partition that was detached later: rows written before belong to the partitioned table.
        is_detached = known is not None and known is not before and str(relation.oid) in known.leaves
        if root is None or now is None or is_detached:
            if known is None:
                return None
            shape = self.shape_of(relation, known, deferrable_key=False)
        else:
            if before is None and now.topic not in topics and not self._is_published(root.oid):
                return None  # a partition that was attached and detached between two catalog reads
            refuse_lost_mask(self._config.mask, before, now)
            shape = self.shape_of(relation, now, deferrable_key=root.deferrable_key, known=before)
        if not shape.key:  # the last catalog read has marked the table as incomplete for this reason
            remedy = f"Give it one: alter table {relation.schema}.{relation.table} add primary key (…)."
            log.warning("table_left_out", table=str(shape), reason="it no longer has a primary key", remedy=remedy)
            return None
        types = load_types(self._connection, [column.type_oid for column in relation.columns])
        return TableEncoder(relation, shape, types)

    def learn(self, oid: int, states: TableStates, lsn: int) -> TableStates:
        """Record a partition that was added after the last catalog read, so that its removal is noticed later."""
        if states.root_of(oid) is not None:
            return states
        root = catalog.root_of(self._connection, oid)
        now = None if root is None else self._state(root.oid)
        if root is None or now is None or str(root.oid) not in states.tables or str(oid) not in now.leaves:
            return states
        born = now.leaves[str(oid)]
        states = states.with_leaf(str(root.oid), str(oid), born=born, part=now.parts[str(oid)])
        return states if born else states.with_pending(now.topic, lsn, "a partition was attached")

    def _state(self, oid: int) -> TableState | None:
        return read_catalog_states(self._connection, [str(oid)], prefix=self._config.kafka.prefix).get(str(oid))

    def _is_published(self, oid: int) -> bool:
        publication = catalog.publication(self._connection, self._config.source.publication)
        return publication is not None and str(oid) in publication.tables

    def shape_of(
        self, relation: Relation, now: TableState, *, deferrable_key: bool, known: TableState | None = None
    ) -> Shape:
        """Return what is published of a relation. `now` is its table's catalog state, `known` the recorded state."""
        is_partition = bool(now.leaves)
        # After a rename, rows that were written before it have the old name and belong to the old topic.
        schema, table = (now.schema, now.table) if is_partition else (relation.schema, relation.table)
        source = TableName(schema, table)
        wanted = self._config.columns_of(source)
        columns = _column_order(relation, now, known) if is_partition else None
        if wanted is not None:
            order = columns or tuple(column.name for column in relation.columns)
            columns = tuple(name for name in order if name in wanted)
        seen = {column.name for state in (now, known) if state is not None for column in state.columns}
        salt = self._config.capture.mask_salt
        shape = Shape(
            schema=schema,
            table=table,
            topic=names.topic(self._config.kafka.prefix, schema, table),
            key=_key(relation, now, known),
            deferrable_key=deferrable_key,
            columns=columns,
            masks=masks_of(self._config.mask, source, [column.name for column in relation.columns], seen),
            salt=b"" if salt is None else salt.reveal().encode(),
        )
        if wanted is not None and not set(shape.key) <= set(wanted):
            raise RefusedError(
                f"[columns] of {shape} leaves out a column of its key.",
                remedy=f"Add the key columns: {', '.join(shape.key)}.",
            )
        return shape


def _column_order(relation: Relation, now: TableState, known: TableState | None) -> tuple[str, ...]:
    """Return the partitioned table's column order, from the catalog or from the state when the rows were written."""
    names = [column.name for column in relation.columns]
    orders = [[column.name for column in state.columns] for state in (now, known) if state is not None]
    for order in orders:
        if set(names) <= set(order):
            return tuple(order)
    return (*orders[0], *(name for name in names if name not in orders[0]))


def _key(relation: Relation, now: TableState, known: TableState | None) -> tuple[str, ...]:
    """Return the key columns in key order, from the catalog or from the state when the rows were written."""
    # Without a replica identity only inserts are possible (the server rejects the rest), and they have every column.
    in_identity = {column.name for column in relation.columns if column.in_key}
    in_identity = in_identity or {column.name for column in relation.columns}
    for state in (now, known):
        if state is not None and state.key and set(state.key) <= in_identity:
            return tuple(state.key)
    if relation.replica_identity is ReplicaIdentity.FULL:
        return ()  # every column is in the identity, so it does not show the key
    if relation.replica_identity is ReplicaIdentity.INDEX:
        return tuple(now.key)  # `table_encoder` refuses the table if the index lacks a key column
    return tuple(column.name for column in relation.columns if column.in_key)
