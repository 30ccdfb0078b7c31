"""Generates the shop's values: names, addresses, descriptions and so on, from a seeded random generator.

No I/O. The same state of the generator gives the same values.
"""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from random import Random
from typing import Final

_FIRST: Final = (
    "Ada",
    "Björn",
    "Chloé",
    "Dmitri",
    "Emeka",
    "Fatima",
    "Grace",
    "Hiroshi",
    "Inés",
    "Jürgen",
    "李雷",
    "Zoë",
)
_LAST: Final = (
    "Abara",
    "Becker",
    "Costa",
    "Dvořák",
    "Eriksen",
    "Fontaine",
    "Garcia",
    "Haddad",
    "Ito",
    "O'Neill",
    "Şahin",
)
_STREETS: Final = ("High Street", "Rue du Bac", "Lindenallee", "Calle Mayor", "Main St", "Nygade", "Via Roma")
_CITIES: Final = ("Lagos", "Paris", "Köln", "Madrid", "Springfield", "Århus", "Torino", "北京")
_THINGS: Final = (
    "kettle",
    "lamp",
    "bicycle bell",
    "notebook",
    "rain coat",
    "desk",
    "water bottle",
    "speaker",
    "chair",
)
_POLLS: Final = (
    "blue",
    "brass",
    "folding",
    "quiet",
    "oak",
    "tiny",
    "heavy-duty",
    "second-hand",
    "waterproof",
)
_TAGS: Final = ("vip", "b2b", "slow payer", 'loves "quotes"', "a,b", "new", "café")
_PROSE: Final = (
    "made by hand in small batches from parts that can be repaired with a plain screwdriver and patience "
    "comes with a spare gasket two felt pads and a card that says thank you in nine languages"
)
_WORDS: Final = tuple(_PROSE.split())
_NOTES: Final = ("Happy birthday!", "With love,\nGran", "Don't open before the 24th", "🎁", "")


def email(random: Random, number: int) -> str:
    return f"{random.choice(_LAST).lower().replace(chr(39), '')}.{number}@example.com"


def person_name(random: Random) -> str:
    return f"{random.choice(_FIRST)} {random.choice(_LAST)}"


def birthday(random: Random) -> dt.date | None:
    if random.random() < 0.2:
        return None
    return dt.date(1935, 1, 1) + dt.timedelta(days=random.randrange(27_000))


def address(random: Random) -> str:
    return json.dumps(
        {
            "street": f"{random.randrange(1, 200)} {random.choice(_STREETS)}",
            "city": random.choice(_CITIES),
            "floor": random.choice((None, 0, 1, 2, 3)),
            "geo": [round(random.uniform(-90, 90), 5), round(random.uniform(-180, 180), 5)],
        },
        ensure_ascii=False,
    )


def tags(random: Random) -> list[str]:
    return random.sample(_TAGS, random.randrange(4))


def product_name(random: Random) -> str:
    return f"{random.choice(_POLLS)} {random.choice(_THINGS)}"


def description(random: Random) -> str:
    """Return a text of 20 words to about 20 kB. Short texts stay in the row; Postgres stores long ones out of line."""
    return " ".join(random.choices(_WORDS, k=random.choice((20, 600, 1_500, 4_000))))


def price(random: Random) -> Decimal:
    return Decimal(random.randrange(50, 200_000)).scaleb(-2)


def weight(random: Random) -> float | None:
    return None if random.random() < 0.1 else random.uniform(0.01, 40)


def attributes(random: Random) -> str:
    return json.dumps(
        {
            "colour": random.choice(_POLLS),
            "rating": round(random.uniform(1, 5), 2),
            "limits": {"watts": random.randrange(10, 2_000), "indoor": random.random() < 0.5},
            "codes": [random.randrange(10**12) for _ in range(random.randrange(4))],
        }
    )


def sizes(random: Random) -> list[int | None] | None:
    if random.random() < 0.3:
        return None
    return [random.choice((36, 38, 40, 42, None)) for _ in range(random.randrange(5))]


def thumbnail(random: Random) -> bytes | None:
    return None if random.random() < 0.3 else random.randbytes(random.randrange(64))


def coupons(random: Random) -> list[str] | None:
    return None if random.random() < 0.6 else [f"SAVE{random.randrange(5, 50)}" for _ in range(random.randrange(1, 3))]


def discount(random: Random) -> Decimal | None:
    """Return a value of any scale. A plain `numeric` keeps trailing zeros, as in `0.10`."""
    return None if random.random() < 0.5 else Decimal(random.randrange(10**6)).scaleb(-random.choice((1, 4, 12)))


def gift_note(random: Random) -> str | None:
    return random.choice(_NOTES) if random.random() < 0.2 else None
