"""How tests are spread over the workers of `pytest -n`. Each worker has servers of its own: most tests run anywhere.

Together stay those that share something dear: the Spark session, an Elasticsearch, a fixture of their module. Only a
worker knows a test's fixtures, and only the controller hands out the work, so the workers write the groups to a file.
(xdist's own groups change the tests' ids, which pytest 9.2 no longer lets it do and `--last-failed` never liked.)
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

# The group of everything that needs the fixture; the first that fits.
DEAR: Final = {"run_spark": "spark", "elasticsearch_url": "elasticsearch", "opensearch_url": "elasticsearch"}
_FILE: Final = "tailrace_groups"


def plugin(config: pytest.Config) -> Controller | Worker:
    """The plugin for this process: the controller of the run, or a worker."""
    told: dict[str, Any] | None = getattr(config, "workerinput", None)
    return Controller() if told is None else Worker(Path(told[_FILE]))


class Worker:
    """Sorts slow tests first and unit tests last, and records which tests belong together."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=_turn)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write the groups; each worker writes the same, and the controller reads when all have written."""
        groups = {item.nodeid: group for item in session.items if (group := _group(item))}
        part = self._file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(groups))
        part.replace(self._file)


class Controller:
    """Assigns the groups to workers as units, in the workers' order."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._crashed: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_FILE] = str(self._file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> GroupScheduling:
        return GroupScheduling(config, log, self._file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        self._crashed.append(crashitem)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Count a test that crashed its worker as failed, also if the next worker runs it and it passes."""
        last_failed = session.config.pluginmanager.get_plugin("lfplugin")
        if last_failed is not None:
            last_failed.lastfailed.update(dict.fromkeys(self._crashed, True))

    def pytest_unconfigure(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def _file(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="tailrace-groups-")
        return Path(self._folder.name, "groups.json")


class GroupScheduling(LoadScopeScheduling):
    """A test without a group is a unit by itself."""

    def __init__(self, config: pytest.Config, log: Any, file: Path) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._file = file

    @cached_property
    def _groups(self) -> dict[str, str]:
        groups: dict[str, str] = json.loads(self._file.read_text())
        return groups

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)


def _group(item: pytest.Item) -> str | None:
    for fixture, group in DEAR.items():
        if fixture in _fixtures(item):
            return group
    return item.nodeid.partition("::")[0] if _is_unit(item) or _shares_module_fixture(item) else None


def _turn(item: pytest.Item) -> int:
    """The test's place in the order; tests with the same place keep the order of the files."""
    for place, fixture in enumerate(DEAR):
        if fixture in _fixtures(item):
            return place
    if _is_unit(item):
        return len(DEAR) + 2
    return len(DEAR) + (0 if _shares_module_fixture(item) else 1)


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def _is_unit(item: pytest.Item) -> bool:
    return "unit" in item.path.parts


def _shares_module_fixture(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function):
        return False
    return any(found[-1].scope == "module" for found in item._fixtureinfo.name2fixturedefs.values())
