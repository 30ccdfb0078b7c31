"""Structured logs on stderr: coloured text on a terminal, one JSON object per line otherwise.

Events have stable snake_case names (`slot_created`), and their details are fields. A line describes a batch, never a
single row. `_redacted` masks the secrets in every line, including a password that a library quotes. Only commands
configure logging.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import structlog

from cdc.secrets import masked

_SELDOM_SECONDS = 60.0
_NAME_CHARACTERS = 100


def configure(level: str = "info", json: bool | None = None) -> None:
    """Configure the logs of this process and its libraries. With `json` None, a terminal gets text and a file JSON."""
    number = getattr(logging, level.upper())
    as_json = not sys.stderr.isatty() if json is None else json
    before = _before_rendering()
    renderer = _renderer(as_json)
    structlog.configure(
        processors=[*before, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # sys.stderr is read for each new logger, because pytest and click's test runner replace it.
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    _configure_libraries(number, before, renderer)


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger whose lines carry `component=name`."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=name)
    return logger


class Seldom:
    """Logs a warning that other users can cause at any rate: at once, then at most once a minute with a count."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._next_at = 0.0
        self._times = 0

    def warning(self, event: str, *, name: str, **facts: object) -> None:
        """Count the warning and log it if a line is due. `name` comes from outside; only its beginning is logged."""
        self._times += 1
        if self._clock() >= self._next_at:
            self._log.warning(event, name=name[:_NAME_CHARACTERS], times=self._times, **facts)
            self._next_at = self._clock() + _SELDOM_SECONDS
            self._times = 0


def _before_rendering() -> list[structlog.typing.Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        # Plain tracebacks: the decorated ones print local variables, which hold passwords and rows.
        structlog.processors.format_exc_info,
        _redacted,
    ]


def _renderer(as_json: bool) -> structlog.typing.Processor:
    if as_json:
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)


def _redacted(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    result: structlog.typing.EventDict = masked(event)
    return result


def _configure_libraries(
    level: int, before: list[structlog.typing.Processor], renderer: structlog.typing.Processor
) -> None:
    """Give the libraries' `logging` output the same format, and show it below WARNING only at level debug."""
    handler = _StderrHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *before],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [*(other for other in root.handlers if not isinstance(other, _StderrHandler)), handler]
    root.setLevel(level if level < logging.INFO else max(level, logging.WARNING))
    # These libraries log every failed connection attempt as an error. They raise what they cannot retry, and Tailrace
    # reports that once.
    for name in ("kafka.net", "kafka.cluster", "elastic_transport.node_pool"):
        logging.getLogger(name).setLevel(level if level < logging.INFO else logging.CRITICAL)


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)
