"""The re-select: reads values from the table that the stream has left out of its events.

It queries the primary, in a snapshot that shows every transaction of these events. Until there is one, it waits and
queries again. To read a row before its commit is visible would publish the old value with the version of the change.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import psycopg
from psycopg import sql

from cdc.backoff import Backoff
from cdc.encoding.envelope import NULL
from cdc.encoding.incomplete_event import Held, Incomplete
from cdc.encoding.table_encoder import TableEncoder
from cdc.errors import TransientError
from cdc.kafka.record import Record
from cdc.pgoutput.messages import Value
from cdc.postgres.connection import explain
from cdc.postgres.visibility import Snapshot

_FIRST_ROWS, _MOST_ROWS = 64, 1024
_BYTES_AT_ONCE = 8 << 20
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.002, 0.5

# The errors of a query whose table was altered, renamed or dropped after the query for its name. Capture retries.
_MOVED = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedObject,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.WrongObjectType,
    psycopg.errors.DatatypeMismatch,
    psycopg.errors.CannotCoerce,
    psycopg.errors.InternalError_,  # "cache lookup failed", "could not open relation": the same cause, detected later
)
# These retries take about 16 seconds. No migration alters a table that often: an error that persists has another cause.
_MOST_MOVES = 40

# A column's name and type. A column with a new type counts as another column: its text would not fit the encoder.
Column = tuple[str, int]


class LiveType(NamedTuple):
    """A key column's type as SQL: the type's name, and its equality operator."""

    name: str
    equals: str


# The current row of one key, as Postgres text. It lacks the columns that no longer exist.
Row = dict[Column, "bytes | None"]
Rows = dict[tuple[bytes, ...], "Row | None"]  # by the key's values; None: no row has this key
# By the table as it was at the event: before and after an ALTER TABLE, one table may have two primary keys.
Found = dict[tuple[TableEncoder, tuple[bytes, ...]], "Row | None"]

_LIVE_NAME = """
select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = %s
"""

# The equality operator of the primary key's index. An extension's operator may be in a schema outside our search_path.
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
    """Completes held events with values from the table, on a connection of its own."""

    def __init__(self, connect: Callable[[], psycopg.Connection], *, stop: Callable[[], bool]) -> None:
        self._connect = connect
        self._connection: psycopg.Connection | None = None
        self._stop = stop
        self._rows_at_once = _FIRST_ROWS

    def complete(self, held: Held) -> Iterator[Record]:
        """Yields the records of the held events, in the order given.

        The number of rows per query depends on the size of their values, so memory use stays bounded.
        """
        at = 0
        while at < len(held):
            some = held[at : at + self._rows_at_once]
            found, size = self._find(some)
            done = 0
            for item in some:
                if isinstance(item, Record):
                    yield item
                elif (item.table, item.key_values) in found:
                    yield from _fill(item, found[item.table, item.key_values])
                else:
                    break  # its row exceeded the size limit: the next query reads it again, with the rows after it
                done += 1
            found.clear()  # frees the rows before the next query
            at += done
            self._adapt(done, len(some), size)

    def _find(self, held: Held) -> tuple[Found, int]:
        """Return the current rows of the keys, up to the size limit but at least one, and their size in bytes."""
        wanted: dict[TableEncoder, list[Incomplete]] = defaultdict(list)
        for item in held:
            if isinstance(item, Incomplete):
                wanted[item.table].append(item)
        found: Found = {}
        size = 0
        try:
            for table, items in wanted.items():
                if size >= _BYTES_AT_ONCE:
                    break
                rows, rows_size = self._read_each(table, items, _BYTES_AT_ONCE - size)
                found |= {(table, key): row for key, row in rows.items()}
                size += rows_size
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise TransientError(f"Re-selecting rows failed: {explain(error)}") from error
        return found, size

    def _adapt(self, done: int, asked: int, size: int) -> None:
        """Set the number of rows for the next query. Rows beyond the size limit cost a lookup and return nothing."""
        if done < asked:
            self._rows_at_once = done
        elif size < _BYTES_AT_ONCE // 4:
            self._rows_at_once = min(_MOST_ROWS, self._rows_at_once * 2)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read_each(self, table: TableEncoder, items: list[Incomplete], room: int) -> tuple[Rows, int]:
        """Read the rows. A key whose text is no longer valid for its type (a renamed enum label) has no row."""
        try:
            return self._read_when_visible(table, items, room)
        except psycopg.DataError:
            if len({item.key_values for item in items}) == 1:
                return {items[0].key_values: None}, 0
            return self._read_each(table, items[:1], room)  # later calls read the others

    def _read_when_visible(self, table: TableEncoder, items: list[Incomplete], room: int) -> tuple[Rows, int]:
        """Read the rows once all their transactions are visible.

        Each table has its own transaction: locks on two tables at once could deadlock with a migration of both.
        """
        if self._connection is None:
            self._connection = self._connect()
        xids = {item.xid for item in items}
        moves, backoff = 0, Backoff(_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS)
        while True:
            try:
                with self._connection.transaction(force_rollback=True):
                    answer = self._read(self._connection, table, items, xids, room)
                if answer is not None:
                    return answer
            except _MOVED:
                moves += 1
                if moves == _MOST_MOVES:
                    raise
            if self._stop():
                raise TransientError("Capture stopped while it waited for a commit to become visible.")
            time.sleep(backoff.next_delay())

    def _read(
        self, connection: psycopg.Connection, table: TableEncoder, items: list[Incomplete], xids: set[int], room: int
    ) -> tuple[Rows, int] | None:
        """Return the rows and the size of their values. None: a transaction is not visible yet.

        The result lacks columns that no longer exist, and keys beyond the size limit. If the table no longer exists, no
        key has a row.

        Each statement sees at least what the statement before it saw. Capture locks the table before it reads the
        columns: so it waits for a migration in progress and sees its result, and no migration can come between the
        query of the columns and the query of the rows.
        """
        connection.execute("set transaction isolation level read committed, read only")
        if not self._shows(connection, xids):
            return None
        oid = table.relation.oid
        keys = list({item.key_values: None for item in items})
        name = connection.execute(_LIVE_NAME, [oid]).fetchone()
        if name is None:
            return dict.fromkeys(keys), 0
        connection.execute(sql.SQL("select from only {} limit 0").format(sql.Identifier(*name)))
        live = connection.execute(_LIVE_COLUMNS, [oid]).fetchall()
        if not live or live[0][:2] != name:
            return None  # the table was renamed during the wait, so the lock may be on another table
        types = {(name, type_oid): LiveType(type_name, equals) for _, _, name, type_oid, type_name, equals in live}
        names = _named(table)
        key_columns = [names[index] for index in table.key_indexes]
        if not set(key_columns) <= types.keys():
            return dict.fromkeys(keys), 0
        columns = [column for column in _columns(table, items) if column in types]
        query = _query(live[0][0], live[0][1], key_columns, types, columns)
        parameters = [*([key[i].decode() for key in keys] for i in range(len(key_columns))), room]
        # A raw cursor, because names may contain `%`, which an ordinary cursor parses as a placeholder.
        result = psycopg.RawCursor(connection).execute(query, parameters).pgresult
        assert result is not None  # noqa: S101  # it is a select
        return _answer(result, keys, columns)

    @staticmethod
    def _shows(connection: psycopg.Connection, xids: set[int]) -> bool:
        row = connection.execute("select pg_current_snapshot()::text").fetchone()
        assert row is not None  # noqa: S101  # a select without FROM has one row
        snapshot = Snapshot.parse(row[0])
        return all(snapshot.shows(xid) for xid in xids)


def _answer(
    result: psycopg.pq.abc.PGresult, keys: Sequence[tuple[bytes, ...]], columns: Sequence[Column]
) -> tuple[Rows, int]:
    """Return the rows by key and their size in bytes.

    Values are Postgres's raw text, not converted by psycopg: the encoder needs the same text as from the stream.
    """
    rows: Rows = {}
    ordinal, found, size = 0, 0, 0
    for number in range(result.ntuples):
        ordinal, found = (int(result.get_value(number, index) or b"") for index in (0, 1))  # neither is ever NULL
        row = {column: result.get_value(number, index) for index, column in enumerate(columns, start=2)}
        size += sum(len(value) for value in row.values() if value is not None)
        rows[keys[ordinal - 1]] = row
    answered = keys if len(rows) == found else keys[:ordinal]
    return {key: rows.get(key) for key in answered}, size


def _named(table: TableEncoder) -> list[Column]:
    return [(column.name, column.type_oid) for column in table.relation.columns]


def _columns(table: TableEncoder, items: Iterable[Incomplete]) -> list[Column]:
    names = _named(table)
    wanted: dict[Column, None] = {}
    for item in items:
        indexes = range(len(names)) if item.values is None else table.missing_toast_indexes(item.values)
        wanted.update((names[index], None) for index in indexes)
    return list(wanted)


def _query(
    schema: str, table: str, key: Sequence[Column], types: dict[Column, LiveType], columns: Sequence[Column]
) -> sql.Composed:
    arrays = sql.SQL(", ").join(sql.SQL(f"${index + 1}::text[]") for index in range(len(key)))
    wanted = sql.SQL(", ").join(sql.Identifier(f"k{index}") for index in range(len(key)))
    join = sql.SQL(" and ").join(
        # The type's name comes from format_type, which quotes it. Each value has its own cast, since a key column may
        # itself be an array.
        sql.SQL("t.{} {} w.{}::{}").format(
            sql.Identifier(column[0]),
            sql.SQL(types[column].equals),
            sql.Identifier(f"k{index}"),
            sql.SQL(types[column].name),
        )
        for index, column in enumerate(key)
    )
    names = [sql.Identifier(f"f{index}") for index in range(len(columns))]
    values = [sql.SQL("t.{}").format(sql.Identifier(name)) for name, _ in columns]
    # The server adds up the sizes of the values (it has the size of text without reading it) and stops at the row that
    # exceeds the limit. So the result is bounded however wide the rows are, and has at least one row. `found`: how many
    # rows there are in all.
    sizes = [sql.SQL("coalesce(octet_length({}::text), 0)::int8").format(value) for value in values]
    return sql.SQL(
        "select n, found{names} from ("
        "select w.n, count(*) over () as found, "
        "sum({size}) over (order by w.n rows between unbounded preceding and 1 preceding) as before{values} "
        "from rows from (unnest({arrays})) with ordinality as w({wanted}, n) join only {table} t on {join}"
        ") answer where before is null or before < {limit} order by n"
    ).format(
        names=sql.SQL("").join(sql.SQL(", {}").format(name) for name in names),
        values=sql.SQL("").join(map(sql.SQL(", {} as {}").format, values, names)),
        size=sql.SQL(" + ").join([sql.SQL("0"), *sizes]),
        arrays=arrays,
        wanted=wanted,
        table=sql.Identifier(schema, table),
        join=join,
        limit=sql.SQL(f"${len(key) + 1}::int8"),
    )


def _fill(item: Incomplete, row: Row | None) -> list[Record]:
    """Return the complete records of one event: none if the row no longer exists, since a later event deletes it."""
    table = item.table
    names = _named(table)
    if item.values is None:
        return _present_state(item, names, row)
    if row is None:
        return []
    missing_toast_indexes = table.missing_toast_indexes(item.values)
    values: list[Value] = list(item.values)
    for index in missing_toast_indexes:
        values[index] = row.get(names[index])
    value = item.render(item.op, table.encode_row(values), [names[index][0] for index in missing_toast_indexes])
    return [Record(table.topic, item.key, value, item.headers)]


def _present_state(item: Incomplete, columns: list[Column], row: Row | None) -> list[Record]:
    """Return the records for a key of a deferrable constraint: its current row, or a delete if no row has the key."""
    topic = item.table.topic
    names = [name for name, _ in columns]
    values: list[Value] = [row.get(column) for column in columns] if row is not None else []
    # A row that is equal but has another text (citext, numeric) has another record key.
    if row is None or item.table.encode_key(values) != item.key:
        return [
            Record(topic, item.key, item.render(b"d", NULL, names), item.headers),
            Record(topic, item.key, None, item.headers),
        ]
    return [Record(topic, item.key, item.render(item.op, item.table.encode_row(values), names), item.headers)]
