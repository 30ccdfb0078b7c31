"""A plan that is shown, asked for and carried out step by step: the part that `remove` and `recover` have in common."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection
from typing import Any, Protocol

import click

DONE, NOTHING_OR_NO = 0, 1


class Plan(Protocol):
    def as_json(self, state: str, done: Collection[Any]) -> dict[str, Any]:
        """`done`: those of its steps that are."""


def agreed() -> bool:
    """End of input is a no; Ctrl-C stays Ctrl-C."""
    click.echo("Go on? [y/N] ", nl=False)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def carry_out(plan: Plan, run: Callable[[Callable[[Any], None]], None], *, state: str, as_json: bool) -> int:
    """`run` calls what it is given after each step; `state` is what the plan has come to then."""
    finished: list[Any] = []

    def done(step: Any) -> None:
        finished.append(step)
        if not as_json:
            click.echo(f"Done: {step}")

    try:
        run(done)
    except BaseException:
        if as_json:
            click.echo(json.dumps(plan.as_json("incomplete", finished), indent=2))
        raise
    if as_json:
        click.echo(json.dumps(plan.as_json(state, finished), indent=2))
    return DONE


def end(plan: Plan, state: str, *, as_json: bool, code: int) -> int:
    """Without anything done."""
    if as_json:
        click.echo(json.dumps(plan.as_json(state, []), indent=2))
    return code
