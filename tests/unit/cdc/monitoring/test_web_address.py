"""The addresses on which a real dashboard process listens."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.harness.processes.process import Process, StartProcess

_CONFIG = """
[source]
dsn = "postgresql://tailrace@127.0.0.1:1/shop"
[kafka]
bootstrap = "127.0.0.1:1"
prefix = "shop"
[dashboard]
port = 0
"""
_TOKEN = 'token = "a-token-of-tests-0123"\n'


def _listening(process: Process) -> list[str]:
    process.wait_for_line(r"Dashboard: http")
    return [each.laddr.ip for each in psutil.Process(process.pid).net_connections("inet") if each.status == "LISTEN"]


@pytest.mark.parametrize("token", ["", _TOKEN])
def test_it_listens_on_loopback_only_unless_it_is_told_otherwise(
    tmp_path: Path, tailrace: StartProcess, token: str
) -> None:
    """By default the dashboard listens on loopback only, with and without a token, and on no other socket."""
    config = tmp_path / "tailrace.toml"
    config.write_text(_CONFIG + token, encoding="utf-8")
    assert _listening(tailrace("dashboard", "--config", str(config))) == ["127.0.0.1"]


def test_it_listens_on_another_address_only_with_a_token(tmp_path: Path, tailrace: StartProcess) -> None:
    """Another address requires a token, on the command line as in the config."""
    config = tmp_path / "tailrace.toml"
    config.write_text(_CONFIG, encoding="utf-8")
    refused = tailrace("dashboard", "--config", str(config), "--host", "0.0.0.0")  # noqa: S104 - what is tested
    refused.expect_exit(2)
    assert "token" in refused.errors
    config.write_text(_CONFIG + _TOKEN, encoding="utf-8")
    told = tailrace("dashboard", "--config", str(config), "--host", "0.0.0.0")  # noqa: S104 - what is tested
    assert _listening(told) == ["0.0.0.0"]  # noqa: S104 - what is tested
