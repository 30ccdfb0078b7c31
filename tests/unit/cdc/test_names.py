"""Names outside Postgres: no two tables or rows share one, every server accepts them, and they read back."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc import names
from cdc.names import Control

prefixes = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,63}", fullmatch=True)
_characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
identifiers = st.text(_characters, min_size=1, max_size=63).filter(lambda name: len(name.encode()) <= 63)
# Dots, dashes, case and look-alike escapes: where a careless scheme would collide.
tricky = st.text(st.sampled_from("aA.-_2eE5f"), min_size=1, max_size=6) | identifiers
tables = st.tuples(tricky, tricky)


@given(prefixes, tricky, tricky)
@example("shop", "public", "orders")
@example("p" * 64, "\U0001f600" * 15, "é" * 31)
def test_topics_are_legal_and_read_back(prefix: str, schema: str, table: str) -> None:
    """Kafka accepts every topic name, and the table can be told from it unless it had to be shortened."""
    topic = names.topic(prefix, schema, table)
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic)
    assert names.parse_topic(topic) == (None if names.is_shortened(topic) else (prefix, schema, table))


@given(prefixes, tricky, tricky)
def test_indices_are_legal_and_read_back(prefix: str, schema: str, table: str) -> None:
    """Elasticsearch accepts every name (no capitals, no leading sign, 255 bytes with a generation), reversibly."""
    index = names.index_name(prefix, schema, table)
    assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", index)
    assert len(index) <= 255 - 16
    assert names.parse_topic(index) == (None if names.is_shortened(index) else (prefix, schema, table))


@given(prefixes, tables, tables)
@example("p", ("a", "b.c"), ("a.b", "c"))
@example("p", ("public", "Orders"), ("public", "orders"))
@example("p", ("public", "a.b"), ("public", "a-2eb"))
def test_two_tables_never_share_a_name(prefix: str, one: tuple[str, str], other: tuple[str, str]) -> None:
    """Tables that differ only by dots, dashes or case have two topics, two indices and two sets of Redis keys."""
    for name in (names.topic, names.index_name):
        assert (name(prefix, *one) == name(prefix, *other)) == (one == other)
    assert (names.redis_key(prefix, *one, "42") == names.redis_key(prefix, *other, "42")) == (one == other)


def test_long_names_keep_apart() -> None:
    """Names too long for the server end in a hash of the whole, so a common beginning does not merge them."""
    long_schema = "é" * 31
    topics = {names.topic("p" * 64, long_schema, "ü" * 30 + last) for last in "abc"}
    assert len(topics) == 3
    assert all(len(topic) == names.TOPIC_BYTES and names.is_shortened(topic) for topic in topics)
    assert not names.is_shortened(names.topic("a--b", "public", "orders"))


def test_names_look_as_documented() -> None:
    """The places where a user looks for `public.orders` with key 42 under prefix `shop`."""
    assert names.topic("shop", "public", "orders") == "shop.public.orders"
    assert names.topic("shop", "public", "Odd.Name") == "shop.public.Odd-2eName"
    assert names.index_name("shop", "public", "Odd.Name") == "shop.public.-4fdd-2e-4eame"
    assert names.row_id(["42"]) == "42"
    assert names.row_id(["7", 'a"b']) == '["7","a\\"b"]'
    assert names.redis_key("shop", "public", "orders", "42") == "shop:public.orders:42"


def test_control_topics_are_no_tables() -> None:
    """A control topic is never taken for a table's topic, for any schema name."""
    topics = [names.control_topic("shop", control) for control in Control]
    assert topics[0] == "shop.__progress"
    assert {names.parse_topic(topic) for topic in topics} == {None}
    assert names.topic("shop", "__progress", "x") not in topics


@pytest.mark.parametrize(
    "name", ["", "shop", "shop.a", "shop.a.", "a.b.c.d", "shop.a-2Eb.c", "shop.a.b-6c", "shop.a-ff.c"]
)
def test_names_that_are_not_ours_are_not_parsed(name: str) -> None:
    """Only exactly the names that Tailrace writes are parsed."""
    assert names.parse_topic(name) is None


@given(st.lists(st.text(_characters | st.just("\0"), max_size=300), min_size=1, max_size=3))
def test_row_ids_are_legal(key_values: list[str]) -> None:
    """Elasticsearch takes ids of 1 to 512 bytes."""
    assert 1 <= len(names.row_id(key_values).encode()) <= 512


@given(st.integers(1, 3).flatmap(lambda n: st.tuples(*[st.tuples(*[st.text(_characters, max_size=600)] * n)] * 2)))
def test_two_rows_never_share_an_id(keys: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    """Different keys of one table have different ids, also when they are empty or over-long."""
    one, other = keys
    assert (names.row_id(one) == names.row_id(other)) == (one == other)


def test_a_key_cannot_pose_as_a_hashed_one() -> None:
    """A row whose key equals the hash of another row's long key has another id."""
    long_key = "x" * 600
    assert names.row_id([names.row_id([long_key])]) != names.row_id([long_key])


@pytest.mark.parametrize("prefix", ["", "Shop", "a.b", "_a", "-a", "a:b", "ä", "a" * 65])
def test_a_bad_prefix_is_refused(prefix: str) -> None:
    """A prefix that would make names ambiguous or illegal never gets into one."""
    with pytest.raises(ValueError, match="prefix"):
        names.topic(prefix, "public", "orders")
