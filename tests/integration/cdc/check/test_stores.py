"""`tailrace check` also checks the stores, and an unreachable store does not stop the other checks."""

from __future__ import annotations

from pathlib import Path

from cdc.check import Level
from cdc.check.stores import judge_stores
from cdc.config import parse_config
from tests.harness.pipeline.check_runs import assert_found, config_text


def test_every_store_is_checked(elasticsearch_url: str, redis_url: str, prefix: str) -> None:
    """Good stores are OK, and one that does not answer is a failure with a remedy."""
    stores = (
        f'[stores.gone]\nkind = "redis"\nurl = "redis://127.0.0.1:1/0"\n'
        f'[stores.search]\nkind = "elasticsearch"\nurl = "{elasticsearch_url}"\n'
        f'[stores.cache]\nkind = "redis"\nurl = "{redis_url}"\n'
    )
    text = config_text("postgresql://nobody@127.0.0.1:1/none", "127.0.0.1:1", prefix) + stores
    found = list(judge_stores(parse_config(text, file=Path("tailrace.toml"), environment={})))
    assert_found(found, Level.FAIL, "store gone")
    assert_found(found, Level.OK, "store search")
    assert_found(found, Level.OK, "store cache")
