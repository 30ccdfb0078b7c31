"""The command line: quick and complete help, documented exit codes, errors as lines without tracebacks."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import structlog

from cdc import __version__, cli
from cdc.errors import RefusedError, TransientError, UsageError

CONFIG = """
[source]
dsn = "postgresql://user:hunter2@host/db"
[kafka]
bootstrap = "localhost:9092"
prefix = "shop"
[kafka.sasl]
username = "u"
password = "${KAFKA_PASSWORD}"
"""


@click.command()
@click.argument("ending")
def end(ending: str) -> int:
    """A command that ends in every possible way."""
    endings: dict[str, BaseException] = {
        "refused": RefusedError("The slot is gone.", remedy="Run `tailrace recover`."),
        "usage": UsageError("No such table."),
        "transient": TransientError("cannot reach postgresql://user:hunter2@host/db"),
        "bug": ZeroDivisionError("postgresql://user:hunter2@host/db"),
        "interrupt": KeyboardInterrupt(),
        "exit": click.exceptions.Exit(1),
    }
    if ending in endings:
        raise endings[ending]
    return int(ending)


@pytest.fixture(autouse=True)
def _own_process_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TAILRACE_CONFIG", "TAILRACE_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(cli.COMMANDS, "end", cli.Lazy("start", "tests.unit.cdc.test_cli:end", "For tests."))
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    structlog.reset_defaults()


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    file = tmp_path / "tailrace.toml"
    file.write_text(CONFIG)
    return file


@pytest.mark.parametrize(
    ("ending", "code"),
    [("0", 0), ("1", 1), ("exit", 1), ("transient", 1), ("bug", 1), ("usage", 2), ("refused", 3), ("interrupt", 130)],
)
def test_exit_codes(ending: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """0 good, 1 no or error, 2 wrong use, 3 refused, 130 interrupted; never a traceback, never a password."""
    assert cli.main(["end", ending]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert "hunter2" not in captured.err


def test_an_error_says_what_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """The message on one line, the remedy on the next."""
    cli.main(["end", "refused"])
    assert capsys.readouterr().err == "tailrace: error: The slot is gone.\n  Run `tailrace recover`.\n"


def test_an_unexpected_error_says_how_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected error gives one line and a hint; the hint gives the traceback, without the password."""
    cli.main(["end", "bug"])
    assert capsys.readouterr().err == (
        "tailrace: error: ZeroDivisionError: postgresql://user:***@host/db\n"
        "  This error is unexpected. `tailrace --log-level debug …` prints its traceback.\n"
    )
    cli.main(["--log-level", "debug", "end", "bug"])
    debugged = capsys.readouterr().err
    assert "Traceback (most recent call last)" in debugged
    assert "hunter2" not in debugged


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["confg"], ["config", "--nonsense"], ["--log-level", "loud", "config"], []]
)
def test_wrong_use_is_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped command or option gets the nearest valid one."""
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert "Usage: tailrace" in error
    assert ("Did you mean config?" in error) == (arguments == ["confg"])


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated")  # kafka-python, when it is imported
@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_loads_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each entry of `COMMANDS` leads to a command with help."""
    assert cli.main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: tailrace {name} ")
    assert "--help" in text


def test_help_lists_every_command_without_loading_any() -> None:
    """`python -m cdc --help` lists every command and imports no driver, no Spark and no logging."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cdc", "--help"], capture_output=True, text=True, check=True
    )
    assert all(name in done.stdout for name in cli.COMMANDS if name != "end")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "cdc.cli" in imported
    assert not imported & {"pyspark", "psycopg", "confluent_kafka", "kafka", "elasticsearch", "structlog", "rich"}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The version is the package's."""
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tailrace, version {__version__}\n"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_config_shows_defaults_and_no_secret(
    config_file: Path, form: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tailrace config` prints the effective config as TOML or JSON; --config and TAILRACE_CONFIG name the file."""
    assert cli.main(["config", "--config", str(config_file), *form]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text
    assert "delete_retention_hours" in text
    if form:
        assert json.loads(text)["kafka"]["sasl"] == {"mechanism": "SCRAM-SHA-512", "username": "u", "password": "***"}
    monkeypatch.setenv("TAILRACE_CONFIG", str(config_file))
    assert cli.main(["config", *form]) == 0
    assert capsys.readouterr().out == text


def test_a_missing_config_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing config file gives an example to copy."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["config"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tailrace: error: tailrace.toml: the config file does not exist.\n")
    assert '    bootstrap = "localhost:9092"\n' in error


def test_a_bad_config_is_one_report(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad config gives all problems in one report and exit code 2."""
    config_file.write_text(CONFIG.replace("prefix", "prefx").replace("localhost:9092", "localhost"))
    assert cli.main(["config", "--config", str(config_file)]) == 2
    assert capsys.readouterr().err == (
        f"tailrace: error: {config_file}: 3 problems\n"
        "  line 4, [kafka] prefix: missing (prefix of every topic, index and key name)\n"
        "  line 5, [kafka] bootstrap: must be host:port, or several separated by commas, got 'localhost'\n"
        "  line 6, [kafka] prefx: unknown key; did you mean `prefix`?\n"
    )
