"""Maintains the warehouse while a sync may run: compacts data and delete files, removes old snapshots and orphans.

If a batch commits during a compaction, the compaction fails without harm and is retried. If batches come too often for
that, the maintenance holds the sync for the last attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc.backoff import Backoff
from cdc.errors import TransientError
from cdc.logs import get_logger
from sinks.iceberg import naming, statements
from sinks.iceberg.catalog import location
from sinks.iceberg.naming import CATALOG, Identifier
from sinks.iceberg.store import IcebergStore
from sinks.iceberg.tables import key_of
from spark_jobs.tasks.task_errors import error_line
from spark_jobs.warehouse.apply import CONFLICTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("maintain")

_TRIES: Final = 3
_HOLD_SECONDS: Final = 120.0
# The files of an uncommitted write look like orphans, so younger files are kept.
_ORPHAN_HOURS: Final = 72
_SMALL_FILES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """The result for one table: files and snapshots before and after. `problem` is the error, if there was one."""

    table: str
    files_before: int
    files: int
    deletes_before: int
    deletes: int
    bytes_before: int
    bytes: int
    snapshots_before: int
    snapshots: int
    seconds: float
    problem: str | None = None


def maintain_warehouse(spark: SparkSession, store: IcebergStore, show: Callable[[Upkeep], None]) -> list[Upkeep]:
    """Maintain every table of the warehouse, one after another. An error in one table does not stop the others.

    `show` is called with the result of each table.
    """
    done = []
    for name in _tables(store):
        done.append(_maintain_table(spark, store, name))
        show(done[-1])
    # Each write of the state table already expires its old snapshots, but leaves their files behind.
    _remove_orphans(spark, store, naming.STATE)
    return done


def _tables(store: IcebergStore) -> Iterator[Identifier]:
    for namespace, *_ in sorted(store.catalog.list_namespaces()):
        if namespace == naming.STATE[0] or naming.generation_of(namespace) is not None:
            continue
        for _, table in sorted(store.catalog.list_tables(namespace)):
            yield namespace, table


def _maintain_table(spark: SparkSession, store: IcebergStore, name: Identifier) -> Upkeep:
    began, problem = time.monotonic(), None
    before = _figures(spark, name)
    try:
        _settled(store, lambda: _compact(spark, store, name))
        _settled(store, lambda: _call(spark, "rewrite_position_delete_files", name))
        oldest = _ago(store.settings.snapshot_retention_hours)
        _call(spark, "expire_snapshots", name, f"older_than => {oldest}, retain_last => 1")
        _settled(store, lambda: _call(spark, "rewrite_manifests", name))
        _remove_orphans(spark, store, name)
    except Exception as error:
        problem = error_line(error)
        log.warning("table_left", table=".".join(name), reason=problem)
    after = _figures(spark, name)
    return Upkeep(
        table=".".join(name),
        files_before=before[0],
        files=after[0],
        deletes_before=before[1],
        deletes=after[1],
        bytes_before=before[2],
        bytes=after[2],
        snapshots_before=before[3],
        snapshots=after[3],
        seconds=round(time.monotonic() - began, 3),
        problem=problem,
    )


def _compact(spark: SparkSession, store: IcebergStore, name: Identifier) -> None:
    """Rewrite small files and files with deletes into a few files that are sorted by key.

    A batch then opens only the files whose key range it touches.
    """
    options = {
        "target-file-size-bytes": str(store.settings.target_file_bytes),
        "min-input-files": str(_SMALL_FILES),
        "delete-file-threshold": "1",
        "remove-dangling-deletes": "true",
        "partial-progress.enabled": "true",
        "partial-progress.max-commits": "10",
    }
    listed = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    found = store.tables.load(name)
    key = ", ".join(statements.quoted_name(each) for each in (key_of(found) if found is not None else []))
    order = f", strategy => 'sort', sort_order => '{key}'" if key and "'" not in key else ""
    result = _call(spark, "rewrite_data_files", name, f"options => map({listed}){order}")
    failed = result[0]["failed_data_files_count"] if result else 0
    if failed:
        raise TransientError(
            f"ValidationException: {failed} files of {'.'.join(name)} changed while they were compacted."
        )


def _remove_orphans(spark: SparkSession, store: IcebergStore, name: Identifier) -> None:
    """Remove files that no snapshot refers to.

    Object storage is listed by the client that Iceberg reads and writes with, since Hadoop may have no client for it.
    """
    listing = ", prefix_listing => true" if "://" in location(store.settings) else ""
    _call(spark, "remove_orphan_files", name, f"older_than => {_ago(_ORPHAN_HOURS)}{listing}")


def _settled(store: IcebergStore, call: Callable[[], Any]) -> None:
    """Call it, and retry after a commit conflict. The last attempt runs while the sync is held."""
    backoff = Backoff()
    for _ in range(_TRIES):
        try:
            call()
            return
        except Exception as error:
            if not any(conflict in str(error) for conflict in CONFLICTS):
                raise
            log.info("conflict_retried", reason=str(error).splitlines()[0][:200])
            time.sleep(backoff.next_delay())
    with store.held(_HOLD_SECONDS):
        call()


def _call(spark: SparkSession, procedure: str, name: Identifier, more: str = "") -> list[Any]:
    table = statements.full_name(name).replace("'", "\\'")
    arguments = f"table => '{table}'" + (f", {more}" if more else "")
    return spark.sql(f"CALL {CATALOG}.system.{procedure}({arguments})").collect()


def _ago(hours: float) -> str:
    return f"TIMESTAMP '{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(time.time() - hours * 3600))}'"


def _figures(spark: SparkSession, name: Identifier) -> tuple[int, int, int, int]:
    """Return the numbers of data files, delete files, bytes of both, and snapshots."""
    full = statements.full_name(name)
    rows = spark.sql(
        f"SELECT count_if(content = 0) AS files, count_if(content <> 0) AS deletes,"  # noqa: S608 - a quoted name
        f" coalesce(sum(file_size_in_bytes), 0) AS bytes FROM {full}.files"
    ).collect()
    snapshots = spark.sql(f"SELECT count(*) AS snapshots FROM {full}.snapshots").collect()  # noqa: S608 - as above
    return rows[0]["files"], rows[0]["deletes"], rows[0]["bytes"], snapshots[0]["snapshots"]
