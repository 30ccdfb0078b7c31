"""A row in a store's shape keeps the bytes of its unchanged values."""

from __future__ import annotations

import pytest

from spark_jobs.shape.shaped_rows import FailedRow, RowShape, shaped_row

_AFTER = b'{"id":1,"n":1.0e+20,"t":"a\\u00e9b","total":"5.00"}'


@pytest.mark.parametrize(
    ("kept", "replaced", "computed", "row"),
    [
        (None, (), '{"c":1}', b'{"id":1,"n":1.0e+20,"t":"a\\u00e9b","total":"5.00","c":1}'),
        (("id", "n"), (), None, b'{"id":1,"n":1.0e+20}'),
        (("id", "t"), (), '{"c":null}', b'{"id":1,"t":"a\\u00e9b","c":null}'),
        (None, ("total",), '{"total":5}', b'{"id":1,"n":1.0e+20,"t":"a\\u00e9b","total":5}'),
        ((), (), '{"c":1}', b'{"c":1}'),
    ],
)
def test_kept_values_are_not_touched(
    kept: tuple[str, ...] | None, replaced: tuple[str, ...], computed: str | None, row: bytes
) -> None:
    """Numbers and text keep their spelling, and computed fields come last."""
    shape = RowShape(None if kept is None else frozenset(kept), frozenset(replaced), evaluated=True)
    assert shape.row(_AFTER, computed) == row


def test_what_spark_says_decides() -> None:
    """A row is kept, left out or failed as Spark says, and an unevaluated row is not kept."""
    shape = RowShape(None, frozenset(), evaluated=True)
    assert shaped_row(shape, _AFTER, {"kept": True, "computed": None, "failure": None}) == _AFTER
    assert shaped_row(shape, _AFTER, {"kept": False, "computed": None, "failure": None}) is None
    assert shaped_row(shape, _AFTER, {"kept": True, "computed": None, "failure": "f: fails"}) == FailedRow("f: fails")
    assert isinstance(shaped_row(shape, _AFTER, None), FailedRow)
    assert shaped_row(RowShape(frozenset({"id"}), frozenset(), evaluated=False), _AFTER, None) == b'{"id":1}'
