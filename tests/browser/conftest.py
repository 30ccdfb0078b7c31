"""A real Chromium, the machine's own; nothing is downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.harness.dashboard.chromium import find_chromium


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the dashboard under test keeps its charts."""
    yield tmp_path
    shutil.rmtree(tmp_path / ".tailrace", ignore_errors=True)
