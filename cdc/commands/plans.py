"""Confirmation, execution and output of a plan of steps, shared by `tailrace remove` and `tailrace recover`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection
from typing import Any, Protocol

import click

DONE, NOTHING_OR_NO = 0, 1


class Plan(Protocol):
    def as_json(self, state: str, done: Collection[Any]) -> dict[str, Any]:
        """Return the plan as JSON. `done` holds the steps that have been carried out."""


def agreed() -> bool:
    """Ask the operator for confirmation on stdin. End of input means no; Ctrl-C still interrupts."""
    click.echo("Continue? [y/N] ", nl=False)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def carry_out(plan: Plan, run: Callable[[Callable[[Any], None]], None], *, state: str, as_json: bool) -> int:
    """Carry the plan out, print each finished step or a final JSON document, and return the exit code.

    `run` receives a function that it calls after each step. `state` is the plan's state in the JSON after success.
    """
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
    """End without carrying out any step: print the plan if `as_json`, and return `code`."""
    if as_json:
        click.echo(json.dumps(plan.as_json(state, []), indent=2))
    return code
