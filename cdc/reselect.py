"""The re-select: completes events from the source where the stream does not carry the whole row.

Runs on the primary, where every transaction concerned is visible (otherwise it waits and repeats): reading the row
before the commit is visible would publish the value from before the change under the change's version.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import psycopg
from psycopg import sql

from cdc.envelope import NULL
from cdc.errors import TransientError
from cdc.messages import Value
from cdc.postgres import explain
from cdc.records import Held, Incomplete, Record
from cdc.relations import Table
from cdc.snapshots import Snapshot

_FIRST_ROWS, _MOST_ROWS = 64, 1024
_BYTES_AT_ONCE = 8 << 20
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.002, 0.5

# What a query says whose table was altered, renamed or dropped after we had asked for its name: ask again.
_MOVED = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedObject,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.WrongObjectType,
    psycopg.errors.DatatypeMismatch,
    psycopg.errors.CannotCoerce,
    psycopg.errors.InternalError_,  # "cache lookup failed", "could not open relation": the same, found later
)
# Within some 16 seconds. No migration moves a table that often while we look: an error that stays is something else.
_MOST_MOVES = 40

# A column's name and type: one that was retyped since then is another one, its text would not fit the encoder.
Column = tuple[str, int]


class LiveType(NamedTuple):
    """In SQL: the type's name, and the operator that tells whether two values of the key are the same."""

    name: str
    equals: str


# What one key is now, as Postgres text. A column that no longer exists is not in it.
Row = dict[Column, "bytes | None"]
Rows = dict[tuple[bytes, ...], Row]  # by the key's values
# By the table as it was: two states of one table may have two keys.
Found = dict[tuple[Table, tuple[bytes, ...]], Row]

_LIVE_NAME = """
select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = %s
"""

# The key's own operator: that of an extension's type may be in a schema that our search_path does not have.
_LIVE_COLUMNS = """
select n.nspname, c.relname, a.attname, a.atttypid::int8, format_type(a.atttypid, -1), coalesce(k.equals, '=')
from pg_class c join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join lateral (
    select format('operator(%%I.%%s)', s.nspname, o.oprname) as equals
    from pg_index i cross join lateral unnest(i.indkey::int2[], i.indclass::oid[]) as u(attnum, opclass)
    join pg_opclass p on p.oid = u.opclass
    join pg_amop m on m.amopfamily = p.opcfamily and m.amoplefttype = p.opcintype and m.amoprighttype = p.opcintype
    join pg_operator o on o.oid = m.amopopr join pg_namespace s on s.oid = o.oprnamespace
    where i.indrelid = c.oid and i.indisprimary and u.attnum = a.attnum
      and m.amopstrategy = 3 and m.amopmethod = (select oid from pg_am where amname = 'btree')
) k on true
where c.oid = %s
"""


class Reselect:
    """`complete` turns what was held into records, in order."""

    def __init__(self, connect: Callable[[], psycopg.Connection], *, stop: Callable[[], bool]) -> None:
        self._connect = connect
        self._connection: psycopg.Connection | None = None
        self._stop = stop
        self._rows_at_once = _FIRST_ROWS

    def complete(self, held: Held) -> Iterator[Record]:
        """In the order given. The number of rows asked for at once follows their size, so that memory stays flat."""
        at = 0
        while at < len(held):
            some = held[at : at + self._rows_at_once]
            at += len(some)
            yield from self._complete_some(some)

    def _complete_some(self, held: Held) -> Iterator[Record]:
        wanted: dict[Table, list[Incomplete]] = defaultdict(list)
        for item in held:
            if isinstance(item, Incomplete):
                wanted[item.table].append(item)
        found: Found = {}
        if wanted:
            try:
                for table, items in wanted.items():
                    found |= {(table, key): row for key, row in self._read_when_visible(table, items).items()}
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                raise TransientError(f"Re-selecting rows failed: {explain(error)}") from error
            self._adapt(found)
        for item in held:
            if isinstance(item, Record):
                yield item
            else:
                yield from _fill(item, found.get((item.table, item.key_values)))

    def _adapt(self, found: Found) -> None:
        size = sum(len(value) for row in found.values() for value in row.values() if value is not None)
        if size > _BYTES_AT_ONCE:
            self._rows_at_once = max(1, self._rows_at_once // 2)
        elif size < _BYTES_AT_ONCE // 4:
            self._rows_at_once = min(_MOST_ROWS, self._rows_at_once * 2)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read_when_visible(self, table: Table, items: list[Incomplete]) -> Rows:
        """A transaction for each table: locks on two of them at once could stop a migration that wants both."""
        if self._connection is None:
            self._connection = self._connect()
        xids = {item.xid for item in items}
        moves, pause_seconds = 0, _FIRST_PAUSE_SECONDS
        while True:
            try:
                with self._connection.transaction(force_rollback=True):
                    rows = self._read(self._connection, table, items, xids)
                if rows is not None:
                    return rows
            except _MOVED:
                moves += 1
                if moves == _MOST_MOVES:
                    raise
            if self._stop():
                raise TransientError("Stopped while waiting for a commit to become visible.")
            time.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, _LAST_PAUSE_SECONDS)

    def _read(
        self, connection: psycopg.Connection, table: Table, items: list[Incomplete], xids: set[int]
    ) -> Rows | None:
        """None: not yet. A table or column that is gone by now is simply not in the answer.

        Each statement sees at least what the one before it saw. The table is locked before it is described: a migration
        is waited for, what it did is seen, and none comes between the description and the rows.
        """
        connection.execute("set transaction isolation level read committed, read only")
        if not self._shows(connection, xids):
            return None
        oid = table.relation.oid
        name = connection.execute(_LIVE_NAME, [oid]).fetchone()
        if name is None:
            return {}
        connection.execute(sql.SQL("select from only {} limit 0").format(sql.Identifier(*name)))
        live = connection.execute(_LIVE_COLUMNS, [oid]).fetchall()
        if not live or live[0][:2] != name:
            return None  # renamed while we waited for the lock, which is perhaps that of another table
        types = {(name, type_oid): LiveType(type_name, equals) for _, _, name, type_oid, type_name, equals in live}
        names = _named(table)
        key_columns = [names[index] for index in table.key_indexes]
        if not set(key_columns) <= types.keys():
            return {}
        keys = list({item.key_values: None for item in items})
        columns = [column for column in _columns(table, items) if column in types]
        query = _query(live[0][0], live[0][1], key_columns, types, columns)
        parameters = [[key[i].decode() for key in keys] for i in range(len(key_columns))]
        # A raw cursor: names may hold a `%`, which an ordinary one takes for a placeholder.
        result = psycopg.RawCursor(connection).execute(query, parameters).pgresult
        assert result is not None  # noqa: S101  # it is a select
        rows: Rows = {}
        for number in range(result.ntuples):
            # Raw text, untouched by loaders: the encoder must see what the stream would have sent.
            ordinal = result.get_value(number, 0)
            assert ordinal is not None  # noqa: S101  # ordinality is never NULL
            rows[keys[int(ordinal) - 1]] = {
                column: result.get_value(number, index + 1) for index, column in enumerate(columns)
            }
        return rows

    @staticmethod
    def _shows(connection: psycopg.Connection, xids: set[int]) -> bool:
        row = connection.execute("select pg_current_snapshot()::text").fetchone()
        assert row is not None  # noqa: S101  # a select without FROM has one row
        snapshot = Snapshot.parse(row[0])
        return all(snapshot.shows(xid) for xid in xids)


def _named(table: Table) -> list[Column]:
    return [(column.name, column.type_oid) for column in table.relation.columns]


def _columns(table: Table, items: Iterable[Incomplete]) -> list[Column]:
    names = _named(table)
    wanted: dict[Column, None] = {}
    for item in items:
        indexes = range(len(names)) if item.values is None else table.holes(item.values)
        wanted.update((names[index], None) for index in indexes)
    return list(wanted)


def _query(
    schema: str, table: str, key: Sequence[Column], types: dict[Column, LiveType], columns: Sequence[Column]
) -> sql.Composed:
    arrays = sql.SQL(", ").join(sql.SQL(f"${index + 1}::text[]") for index in range(len(key)))
    wanted = sql.SQL(", ").join(sql.Identifier(f"k{index}") for index in range(len(key)))
    join = sql.SQL(" and ").join(
        # The type's name comes from format_type, which quotes it; cast one by one, since a key may be an array itself.
        sql.SQL("t.{} {} w.{}::{}").format(
            sql.Identifier(column[0]),
            sql.SQL(types[column].equals),
            sql.Identifier(f"k{index}"),
            sql.SQL(types[column].name),
        )
        for index, column in enumerate(key)
    )
    fields = sql.SQL("").join(sql.SQL(", t.{}").format(sql.Identifier(name)) for name, _ in columns)
    return sql.SQL(
        "select w.n{fields} from rows from (unnest({arrays})) with ordinality as w({wanted}, n) "
        "join only {table} t on {join}"
    ).format(fields=fields, arrays=arrays, wanted=wanted, table=sql.Identifier(schema, table), join=join)


def _fill(item: Incomplete, row: Row | None) -> list[Record]:
    """The finished records of one event; none where the row is gone, since a later event then says so."""
    table = item.table
    names = _named(table)
    if item.values is None:
        return _present_state(item, names, row)
    if row is None:
        return []
    holes = table.holes(item.values)
    values: list[Value] = list(item.values)
    for index in holes:
        values[index] = row.get(names[index])
    value = item.render(item.op, table.encode_row(values), [names[index][0] for index in holes])
    return [Record(table.topic, item.key, value, item.headers)]


def _present_state(item: Incomplete, columns: list[Column], row: Row | None) -> list[Record]:
    """A key of a deferrable constraint, published as what it is now: a row, or nothing."""
    topic = item.table.topic
    names = [name for name, _ in columns]
    values: list[Value] = [row.get(column) for column in columns] if row is not None else []
    # Found by equality, but another text (citext, numeric): that row has a record key of its own.
    if row is None or item.table.encode_key(values) != item.key:
        return [
            Record(topic, item.key, item.render(b"d", NULL, names), item.headers),
            Record(topic, item.key, None, item.headers),
        ]
    return [Record(topic, item.key, item.render(item.op, item.table.encode_row(values), names), item.headers)]
