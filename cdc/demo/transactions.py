"""The shop's transactions. Each function is one transaction of several rows, with values from a seeded generator.

A function writes through the given cursor and returns its changes. It does not commit and keeps no state. The writer
applies the changes to `KnownIds` after the commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from random import Random
from typing import Final

from cdc.demo import shop_values
from cdc.demo.known_ids import Cursor, KnownIds, ShopChanges

Transaction = Callable[[Cursor, Random, KnownIds], ShopChanges]


def _some(random: Random, ids: list[int], most: int) -> list[int]:
    return random.sample(ids, min(len(ids), random.randint(1, most)))


def welcome_customers(cursor: Cursor, random: Random, known_ids: KnownIds) -> ShopChanges:
    """Insert one to three customers."""
    now = known_ids.tick(random)
    made = [
        _one(
            cursor.execute(
                "INSERT INTO public.customers"
                " (email, name, born_on, newsletter, address, tags, created_at, updated_at)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s, %s) RETURNING id",
                (
                    shop_values.email(random, random.getrandbits(48)),
                    shop_values.person_name(random),
                    shop_values.birthday(random),
                    random.random() < 0.5,
                    shop_values.address(random),
                    shop_values.tags(random),
                    now,
                    now,
                ),
            )
        )
        for _ in range(random.randint(1, 3))
    ]
    return ShopChanges(inserted=len(made), new_customers=tuple(made))


def list_products(cursor: Cursor, random: Random, known_ids: KnownIds) -> ShopChanges:
    """Insert one or two products."""
    now = known_ids.tick(random)
    made = [
        _one(
            cursor.execute(
                "INSERT INTO public.products"
                " (sku, name, description, price, weight_kg, stock, attributes, sizes, thumbnail, updated_at)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING id",
                (
                    f"{random.getrandbits(48):012X}",
                    shop_values.product_name(random),
                    shop_values.description(random),
                    shop_values.price(random),
                    shop_values.weight(random),
                    random.randrange(1_000),
                    shop_values.attributes(random),
                    shop_values.sizes(random),
                    shop_values.thumbnail(random),
                    now,
                ),
            )
        )
        for _ in range(random.randint(1, 2))
    ]
    return ShopChanges(inserted=len(made), new_products=tuple(made))


def place_order(cursor: Cursor, random: Random, known_ids: KnownIds) -> ShopChanges:
    """Insert an order with its items, and update the customer and the products' stock.

    The updates do not touch the products' long descriptions.
    """
    now = known_ids.tick(random)
    customer = random.choice(known_ids.customers)
    products = sorted(_some(random, known_ids.products, 6))
    order = _one(
        cursor.execute(
            "INSERT INTO public.orders (customer_id, total, ship_to, coupons, placed_at)"
            " VALUES (%s, 0, %s, %s, %s) RETURNING id",
            (
                customer,
                shop_values.address(random) if random.random() < 0.7 else None,
                shop_values.coupons(random),
                now,
            ),
        )
    )
    cursor.executemany(
        "INSERT INTO public.order_items"
        " (order_id, line_no, product_id, quantity, unit_price, discount, gift_note)"
        " SELECT %s, %s, id, %s, price, %s, %s FROM public.products WHERE id = %s",
        [
            (order, line, random.randint(1, 5), shop_values.discount(random), shop_values.gift_note(random), product)
            for line, product in enumerate(products, start=1)
        ],
    )
    items = cursor.rowcount
    cursor.execute(
        "UPDATE public.orders SET total ="
        " (SELECT coalesce(sum(quantity * unit_price), 0) FROM public.order_items WHERE order_id = %s)"
        " WHERE id = %s",
        (order, order),
    )
    cursor.execute("UPDATE public.products SET stock = stock - 1 WHERE id = ANY(%s)", (products,))
    stocked = cursor.rowcount
    cursor.execute(
        "UPDATE public.customers SET orders_made = orders_made + 1, updated_at = %s WHERE id = %s",
        (now, customer),
    )
    return ShopChanges(inserted=1 + items, updated=1 + stocked + cursor.rowcount, new_orders=(order,))


def advance_orders(cursor: Cursor, random: Random, known_ids: KnownIds) -> ShopChanges:
    """Set up to five orders to their next status."""
    now = known_ids.tick(random)
    tracking = uuid.UUID(int=random.getrandbits(128), version=4)
    cursor.execute(
        "UPDATE public.orders SET"
        " status = CASE status WHEN 'new' THEN 'paid' WHEN 'paid' THEN 'packed' WHEN 'packed' THEN 'shipped'"
        " ELSE 'returned' END::public.order_status,"
        " tracking = coalesce(tracking, %s),"
        " shipped_at = CASE status WHEN 'packed' THEN %s ELSE shipped_at END"
        " WHERE id = ANY(%s)",
        (tracking, now, _some(random, known_ids.orders, 5)),
    )
    return ShopChanges(updated=cursor.rowcount)


def revise_products(cursor: Cursor, random: Random, known_ids: KnownIds) -> ShopChanges:
    """Update the price of up to four products, and the description of some of them."""
    now = known_ids.tick(random)
    updated = 0
    for product in sorted(_some(random, known_ids.products, 4)):
        text = shop_values.description(random) if random.random() < 0.4 else None
        cursor.execute(
            "UPDATE public.products SET price = %s, attributes = %s, stock = stock + 10,"
            " description = coalesce(%s, description), updated_at = %s WHERE id = %s",
            (shop_values.price(random), shop_values.attributes(random), text, now, product),
        )
        updated += cursor.rowcount
    return ShopChanges(updated=updated)


def revise_items(cursor: Cursor, random: Random, known_ids: KnownIds) -> ShopChanges:
    """Update all items of up to three orders."""
    cursor.execute(
        "UPDATE public.order_items SET quantity = %s, gift_note = %s WHERE order_id = ANY(%s)",
        (random.randint(1, 9), shop_values.gift_note(random), _some(random, known_ids.orders, 3)),
    )
    return ShopChanges(updated=cursor.rowcount)


def renumber_items(cursor: Cursor, random: Random, known_ids: KnownIds) -> ShopChanges:
    """Update the primary key of an order's items. Downstream this is a delete of the old key and an insert."""
    cursor.execute(
        "UPDATE public.order_items SET line_no = line_no + 100 WHERE order_id = %s",
        (random.choice(known_ids.orders),),
    )
    return ShopChanges(updated=cursor.rowcount)


def cancel_orders(cursor: Cursor, random: Random, known_ids: KnownIds) -> ShopChanges:
    """Delete up to three orders."""
    return _delete_orders(cursor, _some(random, known_ids.orders, 3))


def archive_orders(cursor: Cursor, random: Random, known_ids: KnownIds) -> ShopChanges:
    """Delete the 20 to 40 oldest orders, so that a demo that runs for days does not grow."""
    return _delete_orders(cursor, sorted(known_ids.orders)[: random.randint(20, 40)])


def forget_customer(cursor: Cursor, random: Random, known_ids: KnownIds) -> ShopChanges:
    """Delete a customer with all orders."""
    customer = random.choice(known_ids.customers)
    found = cursor.execute("SELECT id FROM public.orders WHERE customer_id = %s ORDER BY id", (customer,))
    orders = _delete_orders(cursor, [row[0] for row in found])
    cursor.execute("DELETE FROM public.customers WHERE id = %s", (customer,))
    return ShopChanges(
        deleted=orders.deleted + cursor.rowcount, gone_customers=(customer,), gone_orders=orders.gone_orders
    )


def drop_products(cursor: Cursor, random: Random, known_ids: KnownIds) -> ShopChanges:
    """Delete up to three products that are in no order."""
    gone = cursor.execute(
        "DELETE FROM public.products AS p WHERE id = ANY(%s)"
        " AND NOT EXISTS (SELECT FROM public.order_items WHERE product_id = p.id) RETURNING id",
        (_some(random, known_ids.products, 3),),
    ).fetchall()
    return ShopChanges(deleted=len(gone), gone_products=tuple(row[0] for row in gone))


def _delete_orders(cursor: Cursor, orders: list[int]) -> ShopChanges:
    cursor.execute("DELETE FROM public.order_items WHERE order_id = ANY(%s)", (orders,))
    items = cursor.rowcount
    cursor.execute("DELETE FROM public.orders WHERE id = ANY(%s)", (orders,))
    return ShopChanges(deleted=items + cursor.rowcount, gone_orders=tuple(orders))


def _one(cursor: Cursor) -> int:
    row = cursor.fetchone()
    if row is None:
        raise LookupError("INSERT … RETURNING returned no row")
    return int(row[0])


_WEIGHTS: Final[dict[Transaction, int]] = {
    place_order: 36,
    advance_orders: 16,
    revise_products: 10,
    welcome_customers: 10,
    cancel_orders: 9,
    revise_items: 8,
    list_products: 4,
    renumber_items: 3,
    drop_products: 2,
    forget_customer: 2,
}
_FEWEST: Final = 20
_MOST_ORDERS: Final = 5_000
_MOST_CUSTOMERS: Final = 2_000


def choose(random: Random, known_ids: KnownIds) -> Transaction:
    """Choose the next transaction: at random, unless the shop has too few rows or too many."""
    if len(known_ids.products) < _FEWEST:
        return list_products
    if len(known_ids.customers) < _FEWEST:
        return welcome_customers
    if len(known_ids.orders) < _FEWEST:
        return place_order
    if len(known_ids.orders) > _MOST_ORDERS:
        return archive_orders
    if len(known_ids.customers) > _MOST_CUSTOMERS:
        return forget_customer
    return random.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))[0]
