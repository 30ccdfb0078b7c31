"""The names of pyiceberg and SQLAlchemy that this package calls, imported at their first use.

The import takes half a second and 50 MB. Processes that import this package and have no warehouse save both: every
Spark job imports it. pyiceberg's exceptions are imported in the usual way, which is cheap.
"""

# ruff: noqa: PLC0414 - mypy takes `X as X` as an export

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyiceberg import types as types
    from pyiceberg.catalog import load_catalog as load_catalog
    from pyiceberg.catalog.sql import IcebergTables as IcebergTables
    from pyiceberg.expressions import AlwaysTrue as AlwaysTrue
    from pyiceberg.expressions import In as In
    from pyiceberg.io.pyarrow import ArrowScan as ArrowScan
    from pyiceberg.partitioning import PartitionField as PartitionField
    from pyiceberg.partitioning import PartitionSpec as PartitionSpec
    from pyiceberg.schema import Schema as Schema
    from pyiceberg.transforms import IdentityTransform as IdentityTransform
    from sqlalchemy import delete as delete
    from sqlalchemy import update as update
    from sqlalchemy.exc import SQLAlchemyError as SQLAlchemyError
else:
    _PLACES: Final = {
        "AlwaysTrue": "pyiceberg.expressions:AlwaysTrue",
        "ArrowScan": "pyiceberg.io.pyarrow:ArrowScan",
        "IcebergTables": "pyiceberg.catalog.sql:IcebergTables",
        "IdentityTransform": "pyiceberg.transforms:IdentityTransform",
        "In": "pyiceberg.expressions:In",
        "PartitionField": "pyiceberg.partitioning:PartitionField",
        "PartitionSpec": "pyiceberg.partitioning:PartitionSpec",
        "SQLAlchemyError": "sqlalchemy.exc:SQLAlchemyError",
        "Schema": "pyiceberg.schema:Schema",
        "delete": "sqlalchemy:delete",
        "load_catalog": "pyiceberg.catalog:load_catalog",
        "types": "pyiceberg.types",
        "update": "sqlalchemy:update",
    }

    def __getattr__(name: str) -> Any:
        """Import the name."""
        if name not in _PLACES:
            raise AttributeError(name)
        value = globals()[name] = resolve_name(_PLACES[name])
        return value
