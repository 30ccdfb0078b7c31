"""The ids that exist in the shop, as the writer tracks them, and the changes that each transaction makes to them.

They are read from the database once per connection. This module writes nothing.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg

Cursor = psycopg.Cursor[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class ShopChanges:
    """The changes of one transaction: row counts, and the ids that it created and deleted."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    new_customers: tuple[int, ...] = ()
    new_products: tuple[int, ...] = ()
    new_orders: tuple[int, ...] = ()
    gone_customers: tuple[int, ...] = ()
    gone_products: tuple[int, ...] = ()
    gone_orders: tuple[int, ...] = ()


@dataclass(slots=True)
class KnownIds:
    """The existing ids, so that the writer can pick rows without a query."""

    customers: list[int] = field(default_factory=list)
    products: list[int] = field(default_factory=list)
    orders: list[int] = field(default_factory=list)
    clock: dt.datetime = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)

    @classmethod
    def read(cls, cursor: Cursor) -> KnownIds:
        """Read the ids and the shop's clock from the database."""
        known_ids = cls()
        for ids, query in (
            (known_ids.customers, "SELECT id FROM public.customers ORDER BY id"),
            (known_ids.products, "SELECT id FROM public.products ORDER BY id"),
            (known_ids.orders, "SELECT id FROM public.orders ORDER BY id"),
        ):
            ids.extend(row[0] for row in cursor.execute(query))
        last = cursor.execute(
            "SELECT max(at) FROM (SELECT max(updated_at) FROM public.customers"
            " UNION ALL SELECT max(updated_at) FROM public.products) AS times (at)"
        ).fetchone()
        if last is not None and last[0] is not None:
            known_ids.clock = last[0]
        return known_ids

    def fold(self, changes: ShopChanges) -> None:
        """Apply the changes of a committed transaction."""
        for ids, new, gone in (
            (self.customers, changes.new_customers, changes.gone_customers),
            (self.products, changes.new_products, changes.gone_products),
            (self.orders, changes.new_orders, changes.gone_orders),
        ):
            ids.extend(new)
            if gone:
                ids[:] = [known for known in ids if known not in gone]

    def tick(self, random: Random) -> dt.datetime:
        """Advance the shop's clock and return the time. It is simulated, so the same seed writes the same rows."""
        self.clock += dt.timedelta(microseconds=random.randrange(1, 90_000_000))
        return self.clock
