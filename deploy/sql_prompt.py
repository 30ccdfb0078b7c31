"""A small SQL prompt, for people without psql: statements in, tables out. Errors are shown and do not end it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.rows import tuple_row
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cdc.errors import TransientError
from deploy.sql_text import is_blank, split_statements

HELP = r"""End a statement with ; and press Enter. It may span lines.
\dt         tables          \d NAME     columns of a table
\?          this help       \q          leave (or Ctrl-D)"""

WIDE = 100_000  # off a terminal no line is folded or cut

TABLES = """
SELECT n.nspname AS schema, c.relname AS name,
       CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'partitioned table' ELSE 'view' END AS kind
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
 ORDER BY 1, 2"""

COLUMNS = """
SELECT a.attname AS column, format_type(a.atttypid, a.atttypmod) AS type,
       CASE WHEN a.attnotnull THEN 'not null' ELSE '' END AS null,
       coalesce(pg_get_expr(d.adbin, d.adrelid), '') AS default,
       CASE WHEN a.attnum = ANY (i.indkey) THEN 'primary key' ELSE '' END AS key
  FROM pg_attribute a
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
 WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum"""

_STATE = {
    TransactionStatus.IDLE: "",
    TransactionStatus.INTRANS: "*",
    TransactionStatus.ACTIVE: "*",
    TransactionStatus.INERROR: "!",
    TransactionStatus.UNKNOWN: "?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementResult:
    """What the server said to one statement, as text: a prompt must show values that Python has no type for."""

    status: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | None]]


class SqlPrompt:
    """One session. Every statement commits by itself unless BEGIN was typed."""

    def __init__(self, dsn: str, *, out: TextIO, as_json: bool = False) -> None:
        self._dsn = dsn
        self._out = out
        self._as_json = as_json
        self._console = Console(file=out, width=None if out.isatty() else WIDE, highlight=False)
        self._session = self._connect()

    def close(self) -> None:
        """Ends the session."""
        self._session.close()

    def run_script(self, text: str) -> int:
        """Runs every statement; gives the number that failed. The last may lack its semicolon."""
        # Line by line only where backslash commands are among them: a long statement is cut anew with each line.
        lines = text.splitlines(keepends=True) if re.search(r"(?m)^\s*\\", text) else [text]
        failed, typed = 0, ""
        for line in lines:
            if is_blank(typed) and line.strip() == "\\q":
                return failed
            more, typed = self._take(typed, line)
            failed += more
        return failed if is_blank(typed) else failed + (not self.run(typed.strip()))

    def run_interactive(self, read_line: Callable[[str], str]) -> None:
        """Reads until `\\q` or the end of input; `read_line` gets the prompt to show."""
        self._console.print(f"[dim]{escape(HELP)}[/]")
        typed = ""
        while True:
            try:
                line = read_line(self._prompt(continued=bool(typed)))
            except EOFError:
                return
            except KeyboardInterrupt:
                self._console.print()
                typed = ""
                continue
            if not typed and line.strip() == "\\q":
                return
            _, typed = self._take(typed, line + "\n")

    def _take(self, typed: str, line: str) -> tuple[int, str]:
        """Runs what the line completes; gives the number that failed and what is still open."""
        if is_blank(typed) and line.strip().startswith("\\"):
            return int(not self._command(line.strip())), ""
        statements, rest = split_statements(typed + line)
        failed = sum(not self.run(statement) for statement in statements)
        return failed, "" if is_blank(rest) else rest

    def run(self, statement: str, parameters: Sequence[str] | None = None) -> bool:
        """Runs one statement and shows its answer; False where the server refused it."""
        try:
            if self._session.closed:
                self._session = self._connect()
            self._show(self._execute(statement, parameters))
        except KeyboardInterrupt:
            self._complain("Cancelled.")
            return False
        except (psycopg.Error, TransientError) as error:
            self._complain(str(error).strip())
            return False
        return True

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        try:
            session = psycopg.connect(self._dsn, autocommit=True, connect_timeout=10, row_factory=tuple_row)
        except psycopg.Error as error:
            raise TransientError(
                f"Cannot connect: {str(error).strip().splitlines()[-1]}", remedy="Is it up? Run: tailrace stack status"
            ) from error
        session.add_notice_handler(lambda notice: self._complain(f"{notice.severity}: {notice.message_primary}"))
        return session

    def _execute(self, statement: str, parameters: Sequence[str] | None) -> StatementResult:
        with self._session.cursor() as cursor:
            cursor.execute(statement.encode(), parameters)
            result = cursor.pgresult
            if result is None or result.status != ExecStatus.TUPLES_OK:
                return StatementResult(status=cursor.statusmessage or "", columns=(), rows=())
            columns = [(result.fname(place) or b"").decode() for place in range(result.nfields)]
            rows = [
                [_text(result.get_value(row, place)) for place in range(result.nfields)]
                for row in range(result.ntuples)
            ]
            return StatementResult(status=cursor.statusmessage or "", columns=columns, rows=rows)

    def _show(self, answer: StatementResult) -> None:
        if self._as_json:
            facts = {"status": answer.status, "columns": answer.columns, "rows": answer.rows}
            self._out.write(json.dumps(facts, ensure_ascii=False) + "\n")
        elif answer.columns:
            self._show_rows(answer)
            self._console.print(f"({len(answer.rows)} row{'' if len(answer.rows) == 1 else 's'})")
        else:
            self._console.print(escape(answer.status))
        self._out.flush()

    def _show_rows(self, answer: StatementResult) -> None:
        """A table where it fits, else one line per column."""
        table = Table(*map(escape, answer.columns))
        for row in answer.rows:
            table.add_row(*map(_shown, row))
        if len(answer.columns) == 1 or self._console.measure(table).maximum < self._console.width:
            self._console.print(table)
            return
        for number, row in enumerate(answer.rows, start=1):
            self._console.rule(f"row {number}", align="left")
            columns = Table.grid(padding=(0, 2))
            for name, value in zip(answer.columns, row, strict=True):
                columns.add_row(escape(name), _shown(value))
            self._console.print(columns)

    def _complain(self, text: str) -> None:
        if self._as_json:
            self._out.write(json.dumps({"error": text}, ensure_ascii=False) + "\n")
        else:
            self._console.print(f"[red]{escape(text)}[/]")

    def _command(self, line: str) -> bool:
        word, _, argument = line.rstrip(";").partition(" ")
        if word in {"\\dt", "\\d"} and not argument:
            return self.run(TABLES)
        if word == "\\d":
            return self.run(COLUMNS, [argument.strip()])
        self._console.print(escape(HELP))
        return word == "\\?"

    def _prompt(self, *, continued: bool) -> str:
        info = self._session.info
        state = "?" if self._session.closed else _STATE[info.transaction_status]
        name = "" if self._session.closed else info.dbname
        return f"{name}{'-' if continued else '='}{state}> "


def _shown(value: str | None) -> str:
    return "[dim]NULL[/]" if value is None else escape(value)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
