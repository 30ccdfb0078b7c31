"""`.ci/run`: a test that fails gets a second try, and the last lines of output list the tests that needed one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.processes.process import ROOT

ONE, TWO = "tests/unit/test_a.py::test_one", "tests/unit/test_a.py::test_two[a, b]"
SUMMARY = "=== 2 failed, 10 passed in 12.34s ==="
# Stands for `make`: the first `make test` fails as `first` says, the second try (WORKERS=0) exits with `second`.
_MAKE = """#!/bin/sh
echo "make $*" >> calls
case "$*" in
    "test")
        test -s first || exit 0
        cat first
        mkdir -p .pytest_cache/v/cache
        cp failed .pytest_cache/v/cache/lastfailed
        exit 1 ;;
    "test WORKERS=0"*) exit {second} ;;
    "lint") exit {lint} ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with the real `.ci/run`; its suite passes until `first` has text."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "first").touch()
    (tmp_path / "failed").write_text(f'{{\n  "{ONE}": true,\n  "{TWO}": true\n}}')
    _script(tmp_path / "tests" / "browser" / "chromium.sh", "#!/bin/sh\n")
    return tmp_path


def _script(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def _run(folder: Path, *, second: int = 0, lint: int = 0) -> subprocess.CompletedProcess[str]:
    _script(folder / "bin" / "make", _MAKE.format(second=second, lint=lint))
    environ = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run([".ci/run"], cwd=folder, capture_output=True, text=True, check=False, env=environ)


def _calls(folder: Path) -> list[str]:
    return [" ".join(line.split()[:2]) for line in (folder / "calls").read_text().splitlines()]


def test_a_run_without_failures_says_so(folder: Path) -> None:
    """Lint, suite and browser tests run once each."""
    done = _run(folder)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "No test needed a second try.")
    assert _calls(folder) == ["make lint", "make test", "make test-browser"]


def test_tests_that_needed_a_second_try_are_the_last_lines(folder: Path) -> None:
    """One per line, after the browser's tests, which run as well."""
    (folder / "first").write_text(f"{SUMMARY}\n")
    done = _run(folder)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-2:] == [f"Needed a second try: {name}" for name in (ONE, TWO)]
    assert _calls(folder) == ["make lint", "make test", "make test", "make test-browser"]


def test_a_second_failure_fails_the_run_and_the_list_is_still_there(folder: Path) -> None:
    """The exit code is that of the second try."""
    (folder / "first").write_text(f"{SUMMARY}\n")
    done = _run(folder, second=2)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-2:] == [f"Needed a second try: {name}" for name in (ONE, TWO)]


@pytest.mark.parametrize("said", ["no summary", f"{SUMMARY}\nINTERNALERROR> x", f"{SUMMARY}\n!!! Interrupted !!!"])
def test_a_run_that_was_cut_short_gets_no_second_try(folder: Path, said: str) -> None:
    """An interrupted run fails without a second try, since its list of failed tests is incomplete."""
    (folder / "first").write_text(f"{said}\n")
    done = _run(folder)
    assert done.returncode == 1
    assert _calls(folder) == ["make lint", "make test"]
    assert "second try" not in done.stdout


def test_a_lint_error_ends_the_run(folder: Path) -> None:
    """Before any test, and with lint's exit code."""
    done = _run(folder, lint=2)
    assert (done.returncode, _calls(folder)) == (2, ["make lint"])
    assert "second try" not in done.stdout
