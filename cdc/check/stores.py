"""The configured stores, each asked what it must have; one that does not answer is a finding, not an end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from cdc.check.findings import Finding, fail, gather, ok, warn
from cdc.config import Config
from cdc.stores.registry import is_store_kind, open_store


def judge_stores(config: Config) -> Iterator[Finding]:
    for name in config.stores:
        yield from gather(f"store {name}", lambda name=name: _judge_store(config, name))  # type: ignore[misc]


def _judge_store(config: Config, name: str) -> Iterator[Finding]:
    place, settings = f"store {name}", config.stores[name]
    if not is_store_kind(settings.kind):
        yield warn(place, f"Stores of kind {settings.kind} are not written yet.", "Nothing to do: it is left alone.")
        return
    with closing(open_store(name, settings, config.kafka.prefix)) as store:
        for check in store.check():
            remedy = check.remedy or "See docs/reference/stores.md."
            if check.level == "ok":
                yield ok(place, check.what)
            else:
                yield (warn if check.level == "warn" else fail)(place, check.what, remedy)
