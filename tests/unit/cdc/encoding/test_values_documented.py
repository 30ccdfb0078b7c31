"""docs/reference/types.md says of Debezium what a real Debezium was recorded writing (`make golden`)."""

from __future__ import annotations

import json

import pytest

from tests.golden.documented import Example, read_examples
from tests.golden.script import GOLDEN

_EXAMPLES = read_examples()
_RECORDED = {(one["type"], one["sql"]): one for one in json.loads((GOLDEN / "types.json").read_text())}


def spelled(value: object) -> str:
    """Tells -0.0 from 0, and 1.0 from 1."""
    return json.dumps(value, sort_keys=True)


def test_the_document_has_examples() -> None:
    """A change of its layout must not make the tests below pass on nothing."""
    assert len(_EXAMPLES) > 150
    assert {example.type for example in _EXAMPLES} >= {"bigint", "timestamptz", "text[]", "hstore"}


@pytest.mark.parametrize("example", _EXAMPLES, ids=lambda example: f"{example.type} {example.sql}")
def test_the_debezium_column_is_what_was_recorded(example: Example) -> None:
    """`same`, the other form, or `left out`: each is a recorded fact."""
    recorded = _RECORDED[example.type, example.sql]
    ours = json.loads(example.json)
    if "json" not in recorded:
        assert example.debezium == "left out"
    elif spelled(recorded["json"]) == spelled(ours):
        assert example.debezium == "same"
    else:
        assert spelled(json.loads(example.debezium)) == spelled(recorded["json"])
