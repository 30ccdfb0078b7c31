"""Names of keys in Redis. Pure: no I/O.

A row's key has a dot in its second part (`shop:public.orders:42`). The keys of Tailrace's own state have no dot there
(`shop:__tailrace:cache`). So no row's key can equal a state key, whatever the row's id.
"""

from __future__ import annotations

import re

from cdc import names
from cdc.stores.contract import TableSchema

_GLOB = re.compile(r"[*?\[\]\\^-]")


def row_prefix(prefix: str, table: TableSchema) -> str:
    """Return the prefix of the table's keys. The row's id follows it."""
    return names.redis_key(prefix, table.schema, table.table, "")


def row_pattern(prefix: str, table: TableSchema) -> str:
    """Return a SCAN pattern that matches the table's keys. Special characters of the prefix are escaped."""
    return _GLOB.sub(lambda letter: "\\" + letter[0], row_prefix(prefix, table)) + "*"


def every_row_pattern(prefix: str) -> str:
    """Return a SCAN pattern that matches the rows of all tables."""
    return _GLOB.sub(lambda letter: "\\" + letter[0], f"{prefix}:") + "*.*:*"


def state_key(prefix: str, store: str) -> str:
    """Return the key of the hash that holds a store's generations and positions."""
    return f"{prefix}:__tailrace:{store}"


def name_key(prefix: str) -> str:
    """Return the key that holds the name of the store to which the prefix belongs."""
    return f"{prefix}:__tailrace"


def markers_key(prefix: str) -> str:
    """Return the key of the hash that holds the TRUNCATE markers, by topic.

    The hash has two more fields. `__pipeline` is the id of the pipeline whose rows the store holds. `__from` is that
    pipeline's first generation: rows of an earlier generation belong to another pipeline.
    """
    return f"{prefix}:__truncated"
