"""Reads the state of tables (`TableState`) from the catalog, with one query for all tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import psycopg
from msgspec.structs import replace

from cdc import names
from cdc.tables.recorded_state import CatalogColumn, TablePartition, TableState

# A new column is NULL in old rows, unless one of these gives it a value: a default of the column or of its domain, an
# identity, or a generation expression. After a default was dropped, old rows keep its value (atthasmissing), unless the
# value was written to each row. The stream never has virtual columns, and stored generated ones only since Postgres 18.
_COLUMNS = """
select coalesce(jsonb_agg(jsonb_build_array(
           a.attnum, a.attname, a.atttypid::int8, a.atttypmod, a.xmin::text,
           a.atthasdef or a.atthasmissing or a.attidentity <> '' or t.typdefault is not null,
           a.attgenerated = '' or (a.attgenerated = 's' and current_setting('server_version_num')::int >= 180000)
       ) order by a.attnum), '[]')
from pg_attribute a left join pg_type t on t.oid = a.atttypid
where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
"""

_KEY = """
select coalesce(jsonb_agg(a.attname order by u.place), '[]')
from pg_index i
cross join lateral unnest(i.indkey::int2[]) with ordinality as u(attnum, place)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = u.attnum
where i.indrelid = c.oid and i.indisprimary and u.place <= i.indnkeyatts
"""

# CREATE TABLE … PARTITION OF creates a partition's columns and its pg_inherits row in one transaction. ATTACH updates
# the pg_attribute rows of all columns, in a later transaction or in a later command of the same one. Rows of system
# columns (tableoid is -6) are never updated, so their xmin and cmin are those of the table's creation. `link` has the
# xmin of each pg_inherits row up to the root. It changes if the partition is detached and attached again.
_LEAVES = """
select coalesce(jsonb_object_agg(leaf.oid::text, leaf.born) filter (where leaf.logged), '{}') as leaves,
       coalesce(jsonb_object_agg(leaf.oid::text, jsonb_build_array(leaf.link, leaf.storage)), '{}') as parts,
       coalesce(md5(string_agg(leaf.oid::text || ':' || leaf.storage, ',' order by leaf.oid)), '') as storage
from (
    with recursive tree (oid, link, born) as (
        select c.oid, '', true
        union all
        select i.inhrelid, tree.link || '/' || i.xmin::text, tree.born and i.xmin = made.xmin and exists (
            select from pg_attribute a where a.attrelid = i.inhrelid and a.attnum > 0
            and a.xmin = made.xmin and a.cmin = made.cmin)
        from tree
        join pg_inherits i on i.inhparent = tree.oid
        join pg_attribute made on made.attrelid = i.inhrelid and made.attnum = -6
    )
    select tree.oid, tree.link, tree.born, p.relpersistence = 'p' as logged, p.relfilenode::text as storage
    from tree join pg_class p on p.oid = tree.oid where p.relkind = 'r' and c.relkind = 'p'
) leaf
"""

# Renaming an enum label, or adding an attribute to a composite type, changes the text of every value without changing a
# row. User-defined types have oids from 16384 on. The query also follows their element, base and attribute types.
_FORMS = """
with recursive held (oid) as (
    select a.atttypid from pg_attribute a
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.atttypid >= 16384
    union
    select part.oid from held join pg_type t on t.oid = held.oid
    cross join lateral (
        select t.typbasetype where t.typtype = 'd'
        union all select t.typelem where t.typcategory = 'A'
        union all select a.atttypid from pg_attribute a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
    ) part (oid)
    where part.oid >= 16384
)
select coalesce(jsonb_object_agg(form.oid::text, form.text), '{}')
from (
    select e.oid, e.enumlabel::text from held join pg_enum e on e.enumtypid = held.oid
    union all
    select t.oid, string_agg(a.attnum || ':' || a.atttypid, ',' order by a.attnum)
    from held join pg_type t on t.oid = held.oid join pg_attribute a on a.attrelid = t.typrelid
    where t.typtype = 'c' and a.attnum > 0 and not a.attisdropped
    group by t.oid
) form (oid, text)
"""

_STATES = f"""
select c.oid::text, n.nspname, c.relname, ({_KEY}) as key, ({_COLUMNS}) as columns, ({_FORMS}) as forms,
       l.leaves, l.parts,
       case c.relkind when 'p' then l.storage else c.relfilenode::text end as storage
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
cross join lateral ({_LEAVES}) l
where c.oid = any(%s::oid[]) and not c.relispartition
"""  # noqa: S608 - built from the constants above only


# The catalog records a dropped default (atthasmissing) for the partitions, not for the partitioned table.
_FILLED = """
select attrelid::text, attname from pg_attribute
where attrelid = any(%s::oid[]) and attnum > 0 and atthasmissing and not attisdropped
"""


def read_catalog_states(
    connection: psycopg.Connection[Any], oids: Iterable[str], *, prefix: str
) -> dict[str, TableState]:
    """Return the states, by oid, of the tables that still exist. Omits a table that has become a partition."""
    rows = connection.execute(_STATES, [list(oids)]).fetchall()
    states = {
        oid: TableState(
            schema=schema,
            table=table,
            topic=names.topic(prefix, schema, table),
            key=key,
            storage=storage,
            columns=[CatalogColumn(*column) for column in columns],
            forms=forms,
            leaves=leaves,
            parts={leaf: TablePartition(*part) for leaf, part in parts.items()},
        )
        for oid, schema, table, key, columns, forms, leaves, parts, storage in rows
    }
    parted = [oid for oid, state in states.items() if state.leaves]
    return states | _with_defaults_of_leaves(connection, {oid: states[oid] for oid in parted}) if parted else states


def _with_defaults_of_leaves(
    connection: psycopg.Connection[Any], states: Mapping[str, TableState]
) -> dict[str, TableState]:
    leaves = [leaf for state in states.values() for leaf in state.leaves]
    filled: dict[str, set[str]] = {}
    for leaf, column in connection.execute(_FILLED, [leaves]).fetchall():
        filled.setdefault(leaf, set()).add(column)
    found = {}
    for oid, state in states.items():
        names_filled = set().union(*(filled.get(leaf, ()) for leaf in state.leaves))
        columns = [
            replace(column, has_default=True) if column.name in names_filled else column for column in state.columns
        ]
        found[oid] = replace(state, columns=columns)
    return found
