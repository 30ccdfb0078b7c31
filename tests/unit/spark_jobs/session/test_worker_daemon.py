"""Where Spark workers find their libraries."""

from __future__ import annotations

from pathlib import Path

from spark_jobs.session.worker_daemon import without_copies


def test_an_installed_pyspark_is_not_read_from_its_own_copy(tmp_path: Path) -> None:
    """An installed pyspark is used instead of Spark's copy, unless Spark is installed elsewhere."""
    site = tmp_path / "site-packages"
    copies = [str(site / "pyspark" / "python" / "lib" / name) for name in ("pyspark.zip", "py4j-src.zip")]
    elsewhere = [str(tmp_path / "spark" / "python" / "lib" / "pyspark.zip"), str(tmp_path / "job.zip")]
    assert without_copies(["", *copies, *elsewhere, str(site)]) == ["", *elsewhere, str(site)]
    assert without_copies([*copies, *elsewhere]) == [*copies, *elsewhere]
