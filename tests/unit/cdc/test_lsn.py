"""An LSN reads and prints as Postgres does it, and versions order the same as numbers and as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.lsn import LSN, Version

lsns = st.integers(0, 2**64 - 1)
versions = st.builds(Version, lsns, st.integers(0, 2**32 - 1))


@given(lsns)
def test_an_lsn_survives_its_text(number: int) -> None:
    """What Postgres printed is what we print, and it means the same number."""
    assert LSN.parse(str(LSN(number))) == number


def test_an_lsn_prints_as_postgres_prints_it() -> None:
    """Capital hexadecimal, no leading zeros, in text and in a message."""
    lsn = LSN.parse("16/b374d848")
    assert (str(lsn), repr(lsn), f"{LSN(0)!s}") == ("16/B374D848", "LSN('16/B374D848')", "0/0")


@pytest.mark.parametrize("text", ["", "16", "16/", "/16", "G/0", "123456789/0", "0/123456789", "0/0 ", "0/0\n", "-1/0"])
def test_what_is_no_lsn_is_refused(text: str) -> None:
    """A mistyped LSN is an error, not another LSN."""
    with pytest.raises(ValueError, match="not an LSN"):
        LSN.parse(text)


@given(versions, versions)
def test_version_text_orders_as_the_versions_do(one: Version, other: Version) -> None:
    """Redis compares versions as text: it must come to the same answer."""
    assert (str(one) < str(other)) == (one < other)


@given(versions)
def test_a_version_survives_its_text(version: Version) -> None:
    """A store gives back the version that was written into it."""
    assert Version.parse(str(version)) == version


def test_a_change_beats_a_copied_row_at_the_same_position() -> None:
    """The first commit can fall on the consistent point itself; the change is the newer one."""
    assert Version(1024, 0) < Version(1024, 1) < Version(1032, 0)


@pytest.mark.parametrize("text", ["", "1.2", "0000000000000001", "0000000000000001.1", "000000000000000x.00000001"])
def test_what_is_no_version_is_refused(text: str) -> None:
    """A damaged version is an error, not a small version."""
    with pytest.raises(ValueError, match=r"version|invalid literal"):
        Version.parse(text)
