"""Workers of `pytest -n`: tests that share an expensive fixture stay together, and failed tests are found again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.harness.processes.process import ROOT

_CONFTEST = """
import os
import pytest
from tests.harness import distribution

def pytest_configure(config):
    config.pluginmanager.register(distribution.plugin(config))

@pytest.fixture(scope="session")
def run_spark():
    return os.getpid()

@pytest.fixture(scope="module")
def dear():
    return os.getpid()

@pytest.fixture
def note(request):
    with open("notes", "a") as notes:
        notes.write(f"{request.node.name} {os.getpid()}\\n")
"""
_TESTS = """
import pytest

@pytest.mark.parametrize("number", range(8))
def test_alone(note, number): ...

@pytest.mark.parametrize("number", range(4))
def test_of_one_module(note, dear, number): ...

@pytest.mark.parametrize("number", range(4))
def test_spark(note, run_spark, number): assert number != 2
"""


def _run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    plugins = ("-p", "no:hypothesispytest", "-p", "no:timeout")
    command = [sys.executable, "-m", "pytest", "--rootdir", str(folder), "--import-mode=importlib", *plugins, *args]
    environ = {"PATH": "", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environ)


_CRASH = """
import os
from pathlib import Path

def test_before(run_spark): ...

def test_dies_once(run_spark):
    if not Path("died").exists():
        Path("died").touch()
        os._exit(9)
"""


def test_a_test_that_took_its_worker_down_is_found_again(tmp_path: Path) -> None:
    """A test that crashed its worker counts as failed, also if the next worker runs it and it passes."""
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_crash.py").write_text(_CRASH)
    run = _run(tmp_path, "-n", "2")
    assert run.returncode == 1, run.stdout + run.stderr
    again = _run(tmp_path, "-n", "0", "--last-failed", "--lfnf=none")
    assert "1 passed" in again.stdout, again.stdout + again.stderr
    assert again.returncode == 0


def test_groups_stay_together_and_failures_are_found_again(tmp_path: Path) -> None:
    """One worker runs all that shares a fixture, Spark's first; `--last-failed` runs only what failed in a worker."""
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_some.py").write_text(_TESTS)
    (tmp_path / "test_more.py").write_text("def test_spark_too(note, run_spark): ...")
    run = _run(tmp_path, "-n", "2")
    assert "16 passed" in run.stdout, run.stdout + run.stderr
    ran = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    for group in ("test_spark", "test_of_one_module"):
        assert len({pid for name, pid in ran if name.startswith(group)}) == 1, ran
    assert ran[0][0].startswith(("test_spark", "test_of_one_module")), ran
    again = _run(tmp_path, "-n", "0", "--last-failed")
    assert "1 failed" in again.stdout, again.stdout + again.stderr
    assert "passed" not in again.stdout
