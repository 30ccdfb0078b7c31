"""Descriptions of the tables that a snapshot reads, from the catalog as the current transaction sees it.

They have the columns that the stream would send. The stream describes its rows with a Relation message. A snapshot
builds the same message itself, so that one encoder produces the same bytes for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from cdc.config import Config
from cdc.config.tables import TableName
from cdc.encoding.table_encoder import Shape, TableEncoder
from cdc.encoding.values import TypeInfo, load_types
from cdc.pgoutput.messages import Relation, RelationColumn, ReplicaIdentity
from cdc.postgres import catalog
from cdc.tables.catalog_state import read_catalog_states
from cdc.tables.recorded_state import TableState
from cdc.tables.resolver import TableResolver


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A relation that holds rows: the table itself, or one of its partitions. `storage`: its relfilenode."""

    relation: Relation
    storage: int
    row_filter: str | None  # of the publication, as SQL


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTable:
    """Everything that a snapshot needs to read a table. The driver sends it to the Spark workers."""

    oid: str
    shape: Shape
    relation: Relation  # of any leaf, or of the partitioned table if it has no leaves: they publish the same columns
    leaves: tuple[Leaf, ...]
    types: Mapping[int, TypeInfo]

    @property
    def name(self) -> TableName:
        return TableName(self.shape.schema, self.shape.table)

    def table(self, relation: Relation) -> TableEncoder:
        """Return the encoder for the rows of one leaf. Column order may differ between leaves."""
        return TableEncoder(relation, self.shape, self.types)


# The partitions publish the rows of a partitioned table (publish_via_partition_root is off).
_LEAVES = """
select c.oid::int8, n.nspname, c.relname, c.relreplident::text, coalesce(c.relfilenode, 0)::int8,
    (select jsonb_agg(jsonb_build_array(a.attname, a.atttypid::int8, a.atttypmod) order by a.attnum)
     from pg_attribute a
     where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
       and (a.attgenerated = '' or (a.attgenerated = 's' and current_setting('server_version_num')::int >= 180000)))
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = any(%s::oid[])
order by c.oid
"""

# Maps names to oids in the transaction's snapshot. `regclass` would use the present catalog, where the table may have
# been renamed.
_PUBLISHED = """
select c.oid::int8, p.attnames::text[], p.rowfilter
from pg_publication_tables p
join pg_namespace n on n.nspname = p.schemaname
join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
where p.pubname = %s
"""


def describe_tables(
    connection: psycopg.Connection[Any], config: Config, oids: Iterable[str]
) -> dict[str, DescribedTable]:
    """Return the descriptions, by oid, of the tables that exist and have a key."""
    states = read_catalog_states(connection, oids, prefix=config.kafka.prefix)
    published = _published(connection, config.source.publication)
    return {oid: _describe(connection, config, oid, state, published) for oid, state in states.items() if state.key}


def _published(connection: psycopg.Connection[Any], publication: str) -> dict[int, tuple[list[str], str | None]]:
    """Return the publication's column list and row filter by relation oid. Empty before Postgres 15, which added both.

    The column list includes generated columns if the publication sends them.
    """
    if connection.info.server_version < 150000:
        return {}
    return {oid: (columns, where) for oid, columns, where in connection.execute(_PUBLISHED, [publication]).fetchall()}


def _describe(
    connection: psycopg.Connection[Any],
    config: Config,
    oid: str,
    state: TableState,
    published: Mapping[int, tuple[list[str], str | None]],
) -> DescribedTable:
    root = catalog.root_of(connection, int(oid))
    rows = connection.execute(_LEAVES, [list(state.leaves) or [oid]]).fetchall()
    leaves = []
    for leaf_oid, schema, name, identity, storage, columns in rows:
        names, where = published.get(leaf_oid, (None, None))
        relation = Relation(
            oid=leaf_oid,
            schema=schema,
            table=name,
            replica_identity=ReplicaIdentity(identity),
            columns=tuple(
                RelationColumn(column, type_oid, modifier, column in state.key)
                for column, type_oid, modifier in columns or []
                if names is None or column in names
            ),
        )
        leaves.append(Leaf(relation=relation, storage=storage, row_filter=where))
    shape = TableResolver(config, connection).shape_of(
        leaves[0].relation, state, deferrable_key=root is not None and root.deferrable_key
    )
    type_oids = {column.type_oid for leaf in leaves for column in leaf.relation.columns}
    is_empty_root = bool(root and root.is_partitioned and not state.leaves)
    return DescribedTable(
        oid=oid,
        shape=shape,
        relation=leaves[0].relation,
        leaves=() if is_empty_root else tuple(leaves),
        types=load_types(connection, type_oids),
    )
