"""One function chooses how Spark jobs write a kind of store."""

from __future__ import annotations

import pytest

from cdc.config import IcebergConfig
from cdc.config.settings import Location
from cdc.errors import UsageError
from cdc.stores.registry import is_table_kind, open_row_store
from spark_jobs.kinds.rows import RowWriting
from spark_jobs.kinds.warehouse import WarehouseWriting
from spark_jobs.writing.choice import writing_of
from spark_jobs.writing.contract import UNREPAIRED


@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch", "redis"])
def test_row_stores_share_one_way(kind: str) -> None:
    """Tasks write the rows of every row store, and Python workers run."""
    assert type(writing_of(kind)) is RowWriting
    assert not writing_of(kind).in_spark
    assert not is_table_kind(kind)
    assert writing_of(kind).unrepaired == UNREPAIRED


def test_a_table_store_names_its_own_way() -> None:
    """Spark writes the warehouse, and its rows do not pass through Python."""
    assert type(writing_of("iceberg")) is WarehouseWriting
    assert writing_of("iceberg").in_spark
    assert is_table_kind("iceberg")


def test_a_warehouse_has_no_rows_to_write() -> None:
    """Code that writes rows refuses a table store by its name and kind, before it opens it."""
    settings = IcebergConfig(path=Location("/nowhere"))
    with pytest.raises(UsageError, match="`lake` has kind iceberg"):
        open_row_store("lake", settings, "shop")


def test_an_unknown_kind_is_no_table_kind() -> None:
    """A kind that no package has is reported when the store is opened, not earlier."""
    assert not is_table_kind("nothing")
