"""Cutting typed text into statements: a semicolon counts only where Postgres would take it as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.sql_text import is_blank, split_statements

PIECES = ["SELECT 1", "'a;b'", '"x;y"', "$$p;q$$", "$f$ $$;$$ $f$", "/* ; /* ; */ ; */", "-- ; '\n", "E'\\';'", "''''"]


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("SELECT 1;", ["SELECT 1"], ""),
        ("SELECT 1; SELECT 2", ["SELECT 1"], " SELECT 2"),
        (";;", [], ""),
        ("SELECT ';", [], "SELECT ';"),
        ("SELECT $a$ ; $b$ ;", [], "SELECT $a$ ; $b$ ;"),
        ("/* ; ", [], "/* ; "),
        ("SELECT a$b$c; x", ["SELECT a$b$c"], " x"),
        ("SELECT E'it\\'s;'; SELECT '\\';", ["SELECT E'it\\'s;'", "SELECT '\\'"], ""),
    ],
)
def test_statements_end_at_their_semicolon(text: str, statements: list[str], rest: str) -> None:
    """Complete statements are cut off, and an open one waits for more lines."""
    assert split_statements(text) == (statements, rest)


@given(st.lists(st.lists(st.sampled_from(PIECES), min_size=1), max_size=5))
def test_no_quote_or_comment_breaks_a_statement(written: list[list[str]]) -> None:
    """However quotes and comments are mixed, each statement comes out whole and in order."""
    whole = [" ".join(pieces) + " " for pieces in written]
    statements, rest = split_statements("".join(f"{statement};" for statement in whole))
    assert statements == [statement.strip() for statement in whole]
    assert rest == ""


@given(st.text(alphabet="ab;'\"$/*-e\\\n "))
def test_any_text_is_cut_without_loss(text: str) -> None:
    """No input hangs or raises, and nothing typed after the last statement is lost."""
    _, rest = split_statements(text)
    assert text.endswith(rest)


@pytest.mark.parametrize(
    ("text", "blank"), [("", True), (" \n-- x", True), ("/* a */ ", True), ("x", False), ("'", False)]
)
def test_blank_is_what_has_nothing_to_run(text: str, blank: bool) -> None:
    """Comments alone are not sent to the server."""
    assert is_blank(text) is blank
