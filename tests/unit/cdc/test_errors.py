"""Every error has a remedy and maps to the documented exit code."""

from __future__ import annotations

import pytest

from cdc.errors import (
    ConfigError,
    ProtocolError,
    RefusedError,
    TailraceError,
    TransientError,
    UsageError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TailraceError("x"), 1),
        (TransientError("x"), 1),
        (UsageError("x"), 2),
        (ConfigError("tailrace.toml", []), 2),
        (RefusedError("x"), 3),
        (ProtocolError("x"), 3),
    ],
)
def test_exit_codes(error: TailraceError, code: int) -> None:
    """Exit code 2 is wrong use or config, 3 a refusal that needs an operator, 1 any other error."""
    assert error.exit_code == code


def test_the_remedy_follows_the_message() -> None:
    """`str(error)` includes the remedy."""
    assert str(RefusedError("The slot is gone.", remedy="Run `tailrace recover`.")) == (
        "The slot is gone. Run `tailrace recover`."
    )
    assert str(RefusedError("The slot is gone.")) == "The slot is gone."


def test_a_config_error_lists_every_problem() -> None:
    """One report, a line per problem, each with its place."""
    error = ConfigError("tailrace.toml", [("[kafka] prefix", "missing"), ("", "not TOML")])
    assert str(error) == "tailrace.toml: 2 problems\n  [kafka] prefix: missing\n  not TOML"
    assert str(ConfigError("c", [("[a]", "b")])).startswith("c: 1 problem\n")
