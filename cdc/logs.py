"""Structured logs on stderr: pretty on a terminal, one JSON object per line otherwise.

Events have stable snake_case names (`slot_created`), their facts are fields, a line stands for a batch and never for
a row. Every line passes `_redacted`, so a password that a library quotes does not get out. Only commands configure.
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
    """Set up this process's logs, those of the libraries included; `json` None looks at the terminal."""
    number = getattr(logging, level.upper())
    as_json = not sys.stderr.isatty() if json is None else json
    before = _before_rendering()
    renderer = _renderer(as_json)
    structlog.configure(
        processors=[*before, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # Looked up for each logger, so that whoever replaces sys.stderr (pytest, click's runner) gets the lines.
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    _configure_libraries(number, before, renderer)


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=name)
    return logger


class Seldom:
    """A warning that strangers can cause as often as they like: told once, then at most once a minute, and counted."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._next_at = 0.0
        self._times = 0

    def warning(self, event: str, *, name: str, **facts: object) -> None:
        """`name` is theirs, of any length."""
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
        # Plain tracebacks: the pretty ones print local variables, and those hold passwords and rows.
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
    """Libraries log through `logging`: same format; their chatter below WARNING only when debugging."""
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
    # They report every attempt to connect as an error; what they cannot mend they raise, and we say that once.
    for name in ("kafka.net", "kafka.cluster", "elastic_transport.node_pool"):
        logging.getLogger(name).setLevel(level if level < logging.INFO else logging.CRITICAL)


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)
