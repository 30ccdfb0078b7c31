"""Names of keys in Redis. Pure.

A row's key has a dot in its second part (`shop:public.orders:42`); ours have none (`shop:__tailrace:cache`), so no row
can be mistaken for one of ours, whatever its id.
"""

from __future__ import annotations

import re

from cdc import names
from cdc.stores.contract import TableSchema

_GLOB = re.compile(r"[*?\[\]\\^-]")


def row_prefix(prefix: str, table: TableSchema) -> str:
    """What the table's keys begin with; a row's id follows."""
    return names.redis_key(prefix, table.schema, table.table, "")


def row_pattern(prefix: str, table: TableSchema) -> str:
    """The same as a pattern of SCAN: what has a meaning there is escaped."""
    return _GLOB.sub(lambda letter: "\\" + letter[0], row_prefix(prefix, table)) + "*"


def every_row_pattern(prefix: str) -> str:
    """Of the rows of all tables."""
    return _GLOB.sub(lambda letter: "\\" + letter[0], f"{prefix}:") + "*.*:*"


def state_key(prefix: str, store: str) -> str:
    """The hash of generations and positions."""
    return f"{prefix}:__tailrace:{store}"


def name_key(prefix: str) -> str:
    """The name of the store that the prefix belongs to."""
    return f"{prefix}:__tailrace"


def markers_key(prefix: str) -> str:
    """The hash of TRUNCATE markers, by table. `__pipeline`: the id of the pipeline whose rows are here; `__from`: the
    generation that it began with. Rows of an earlier one are another pipeline's."""
    return f"{prefix}:__truncated"
