"""Reads `TableState`s from the catalog: one query for all tables of interest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from cdc import names
from cdc.table_states import Column, TableState

# A column without a value in old rows is NULL there, unless something fills it: a default of its own or of its domain,
# an identity, a generation expression. Virtual columns are never in the stream, stored generated ones since 18.
_COLUMNS = """
select coalesce(jsonb_agg(jsonb_build_array(
           a.attnum, a.attname, a.atttypid::int8, a.atttypmod, a.xmin::text,
           a.atthasdef or a.attidentity <> '' or t.typdefault is not null,
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

# A partition made by CREATE TABLE … PARTITION OF is linked by the transaction that made its columns. ATTACH updates the
# entries of all columns, if not in a later transaction then in a later command of the same one. System columns
# (tableoid is -6) are never updated, so they tell when the table was made.
_LEAVES = """
select coalesce(jsonb_object_agg(leaf.oid::text, leaf.born), '{}') as leaves,
       coalesce(md5(string_agg(leaf.oid::text || ':' || leaf.storage, ',' order by leaf.oid)), '') as storage
from (
    with recursive tree (oid, born) as (
        select c.oid, true
        union all
        select i.inhrelid, tree.born and i.xmin = made.xmin and exists (
            select from pg_attribute a where a.attrelid = i.inhrelid and a.attnum > 0
            and a.xmin = made.xmin and a.cmin = made.cmin)
        from tree
        join pg_inherits i on i.inhparent = tree.oid
        join pg_attribute made on made.attrelid = i.inhrelid and made.attnum = -6
    )
    select tree.oid, tree.born, p.relfilenode::text as storage
    from tree join pg_class p on p.oid = tree.oid where p.relkind = 'r' and c.relkind = 'p'
) leaf
"""

_STATES = f"""
select c.oid::text, n.nspname, c.relname, ({_KEY}) as key, ({_COLUMNS}) as columns, l.leaves,
       case c.relkind when 'p' then l.storage else c.relfilenode::text end as storage
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
cross join lateral ({_LEAVES}) l
where c.oid = any(%s::oid[]) and not c.relispartition
"""  # noqa: S608 - put together from the constants above


def read_states(connection: psycopg.Connection[Any], oids: Iterable[str], *, prefix: str) -> dict[str, TableState]:
    """Those of the tables that still exist, by oid; one that has become a partition is a table no more."""
    rows = connection.execute(_STATES, [list(oids)]).fetchall()
    return {
        oid: TableState(
            schema=schema,
            table=table,
            topic=names.topic(prefix, schema, table),
            key=key,
            storage=storage,
            columns=[Column(*column) for column in columns],
            leaves=leaves,
        )
        for oid, schema, table, key, columns, leaves, storage in rows
    }
