"""Checks of the configured stores. A store that does not answer is one finding; the checks of the others still run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from cdc.check.findings import Finding, fail, gather, ok, warn
from cdc.config import Config
from cdc.stores.registry import is_store_kind, open_store


def judge_stores(config: Config) -> Iterator[Finding]:
    """Yield the findings of each store's own checks."""
    for name in config.stores:
        yield from gather(f"store {name}", lambda name=name: _judge_store(config, name))  # type: ignore[misc]


def _judge_store(config: Config, name: str) -> Iterator[Finding]:
    place, settings = f"store {name}", config.stores[name]
    if not is_store_kind(settings.kind):
        yield warn(
            place,
            f"This version cannot write stores of kind {settings.kind}.",
            "Nothing to do: Tailrace ignores the store.",
        )
        return
    with closing(open_store(name, settings, config.kafka.prefix)) as store:
        for check in store.check():
            remedy = check.remedy or "See docs/reference/stores.md."
            if check.level == "ok":
                yield ok(place, check.what)
            else:
                yield (warn if check.level == "warn" else fail)(place, check.what, remedy)
