"""From messages to records: numbers, versions, deletes, key changes, TRUNCATE, and skipping after a restart."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.encoding.incomplete_event import Incomplete
from cdc.errors import ProtocolError
from cdc.kafka.record import Record
from cdc.lsn import Version
from cdc.pgoutput.messages import UNCHANGED
from tests.harness.pipeline.event_rules import (
    BOOL,
    ID_AND_NAME,
    INT8,
    NOTHING_PUBLISHED,
    TEXT,
    Feed,
    full,
    make_table,
    outline,
    value_of,
    version_of,
)
from tests.harness.postgres.pgoutput import LEFT_OUT, begin, commit, delete, insert, origin, truncate, update

ORDERS = 16_384
ITEMS = 16_400


# -- numbers and versions ----------------------------------------------------------------------------------------------


def test_changes_of_a_transaction_are_numbered_from_one() -> None:
    """The version is the commit's LSN and the change's number, which starts again with each transaction."""
    feed = Feed(make_table())
    feed.transaction(0x5000, insert(ORDERS, ["1", "a"]), update(ORDERS, ["1", "b"]))
    feed.transaction(0x6000, insert(ORDERS, ["2", "c"]))
    assert outline(feed.records) == [
        ("c", '{"id":1}', Version(0x5000, 1)),
        ("u", '{"id":1}', Version(0x5000, 2)),
        ("c", '{"id":2}', Version(0x6000, 1)),
    ]
    assert feed.numbering.version == Version(0x6000, 1)


def test_the_numbers_run_through_all_tables_of_a_transaction() -> None:
    """Numbers give one order over all tables; Debezium's two counts are per transaction and per table."""
    feed = Feed(make_table(), make_table(ITEMS, "items"))
    feed.transaction(0x5000, insert(ORDERS, ["1", "a"]), insert(ITEMS, ["1", "x"]), insert(ORDERS, ["2", "b"]))
    counted = [value_of(record)["transaction"] for record in feed.records]
    assert [version_of(record).seq for record in feed.records] == [1, 2, 3]
    assert [block["total_order"] for block in counted] == [1, 2, 3]
    assert [block["data_collection_order"] for block in counted] == [1, 1, 2]
    assert {block["id"] for block in counted} == {f"700:{0x5000}"}


def test_the_base_raises_every_position() -> None:
    """After a recovery onto a server with lower LSNs, the base makes new versions larger; LSNs stay the server's."""
    feed = Feed(make_table(), base=0x10_0000)
    feed.transaction(0x5000, insert(ORDERS, ["1", "a"]))
    (record,) = feed.records
    assert version_of(record) == Version(0x10_5000, 1)
    source = value_of(record)["source"]
    assert (source["position"], source["commit_lsn"], source["seq"]) == (0x10_5000, 0x5000, 1)


def test_the_version_in_the_header_is_the_one_in_the_value() -> None:
    """The version in the header equals the one in the value."""
    feed = Feed(make_table())
    feed.transaction(0x5000, insert(ORDERS, ["1", "a"]), delete(ORDERS, key=["1", None]))
    events = [record for record in feed.records if record.value is not None]
    assert len(events) == 2
    for record in events:
        source = value_of(record)["source"]
        assert version_of(record) == Version(source["position"], source["seq"])


def test_the_sequence_names_the_end_of_the_last_commit() -> None:
    """As in Debezium, the sequence is null before the first commit, then the last commit's end and the change's LSN."""
    feed = Feed(make_table())
    feed.transaction(0x5000, insert(ORDERS, ["1", "a"]))
    feed.transaction(0x6000, insert(ORDERS, ["2", "a"]))
    sequences = [json.loads(value_of(record)["source"]["sequence"]) for record in feed.records]
    lsns = [str(value_of(record)["source"]["lsn"]) for record in feed.records]
    assert sequences == [[None, lsns[0]], [str(0x5000 + 48), lsns[1]]]


def test_the_origin_of_a_replicated_transaction_is_published() -> None:
    """A replicated transaction has its origin, and the next transaction does not inherit it."""
    feed = Feed(make_table())
    feed.transaction(0x5000, origin(0x99, 'node "b" 100%'), insert(ORDERS, ["1", "a"]))
    feed.transaction(0x6000, insert(ORDERS, ["2", "a"]))
    sources = [value_of(record)["source"] for record in feed.records]
    assert [(source["origin"], source["origin_lsn"]) for source in sources] == [('node "b" 100%', 0x99), (None, None)]


def test_names_with_percent_signs_and_quotes_do_not_break_the_envelope() -> None:
    """Names with percent signs and quotes are data, although the envelope is a format template."""
    table = make_table(name='%d "100%%" %b', columns=[('%(id)s"', INT8, True), ("%", TEXT, False)], key=['%(id)s"'])
    feed = Feed(table)
    feed.transaction(0x5000, insert(ORDERS, ["1", "%s %b"]))
    (record,) = feed.records
    value = value_of(record)
    assert value["source"]["table"] == '%d "100%%" %b'
    assert value["after"] == {'%(id)s"': 1, "%": "%s %b"}
    assert json.loads(record.key) == {'%(id)s"': 1}


# -- rows --------------------------------------------------------------------------------------------------------------


def test_a_delete_is_followed_by_a_tombstone_of_the_same_version() -> None:
    """The tombstone has the delete's version, since compaction may leave the tombstone alone."""
    feed = Feed(make_table())
    feed.transaction(0x5000, delete(ORDERS, key=["1", None]))
    assert outline(feed.records) == [("d", '{"id":1}', Version(0x5000, 1)), (None, '{"id":1}', Version(0x5000, 1))]
    value = value_of(feed.records[0])
    assert (value["before"], value["after"]) == ({"id": 1, "name": None}, None)


def test_old_rows_are_published_where_the_replica_identity_gives_them() -> None:
    """Under FULL `before` is the whole old row, also for an update."""
    feed = Feed(make_table(columns=full(), identity="f"))
    feed.transaction(0x5000, update(ORDERS, ["1", "b"], old=["1", "a"]), delete(ORDERS, old=["1", "b"]))
    befores = [value_of(record)["before"] for record in feed.records if record.value is not None]
    assert befores == [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "decoded"])
def test_a_key_change_deletes_the_old_key_and_inserts_the_new_one(quick: bool) -> None:
    """Both events share the version and name each other in Debezium's headers, the tombstone included."""
    feed = Feed(make_table(), quick=quick)
    feed.transaction(0x5000, update(ORDERS, ["2", "a"], key=["1", None]), update(ORDERS, ["3", "a"]))
    assert outline(feed.records) == [
        ("d", '{"id":1}', Version(0x5000, 1)),
        (None, '{"id":1}', Version(0x5000, 1)),
        ("c", '{"id":2}', Version(0x5000, 1)),
        ("u", '{"id":3}', Version(0x5000, 2)),
    ]
    assert [record.headers[1:] for record in feed.records] == [
        [("__debezium.newkey", b'{"id":2}')],
        [("__debezium.newkey", b'{"id":2}')],
        [("__debezium.oldkey", b'{"id":1}')],
        [],
    ]
    assert [value_of(record)["transaction"]["total_order"] for record in feed.records if record.value] == [1, 2, 3]


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "decoded"])
def test_a_key_change_under_full_identity_has_the_whole_old_row(quick: bool) -> None:
    """The delete has the whole old row, and the insert has no `before`."""
    feed = Feed(make_table(columns=full(), identity="f"), quick=quick)
    feed.transaction(0x5000, update(ORDERS, ["2", "b"], old=["1", "a"]))
    gone, tombstone, new = feed.records
    assert value_of(gone)["before"] == {"id": 1, "name": "a"}
    assert tombstone.value is None
    assert (value_of(new)["before"], value_of(new)["after"]) == (None, {"id": 2, "name": "b"})


def test_an_old_key_that_equals_the_new_one_is_no_key_change() -> None:
    """An old key equal to the new one, which Postgres sends for a TOASTed key, is no key change."""
    feed = Feed(make_table())
    feed.transaction(0x5000, update(ORDERS, ["1", "b"], key=["1", None]))
    assert outline(feed.records) == [("u", '{"id":1}', Version(0x5000, 1))]


def test_a_key_that_is_stored_out_of_line_is_taken_from_the_old_key() -> None:
    """An unchanged TOASTed key is taken from the old key, without a key change or a re-select."""
    table = make_table(columns=[("id", TEXT, True), ("name", TEXT, False)])
    feed = Feed(table)
    feed.transaction(0x5000, update(ORDERS, [LEFT_OUT, "b"], key=["long", None]))
    (record,) = feed.records
    assert outline([record]) == [("u", '{"id":"long"}', Version(0x5000, 1))]
    assert value_of(record)["after"] == {"id": "long", "name": "b"}
    assert not feed.queue.held


def test_composite_keys_keep_the_order_of_the_key() -> None:
    """Key columns have the primary key's order and not the table's, since the bytes decide the partition."""
    columns = [("line", INT8, True), ("order_id", INT8, True), ("paid", BOOL, False)]
    feed = Feed(make_table(columns=columns, key=("order_id", "line")))
    feed.transaction(
        0x5000, insert(ORDERS, ["2", "700", "t"]), update(ORDERS, ["3", "700", "f"], key=["2", "700", None])
    )
    assert [record.key for record in feed.records] == [
        b'{"order_id":700,"line":2}',
        b'{"order_id":700,"line":2}',
        b'{"order_id":700,"line":2}',
        b'{"order_id":700,"line":3}',
    ]


# -- values that were left out -----------------------------------------------------------------------------------------


def test_a_left_out_value_comes_from_the_old_row_where_there_is_one() -> None:
    """Under FULL the old row supplies a left-out value without a query."""
    feed = Feed(make_table(columns=full(), identity="f"))
    feed.transaction(0x5000, update(ORDERS, ["1", LEFT_OUT], old=["1", "kept"]))
    (record,) = feed.records
    assert value_of(record)["after"] == {"id": 1, "name": "kept"}
    assert "reselected" not in value_of(record)["source"]


def test_an_update_that_left_a_value_out_waits_for_a_query() -> None:
    """An update without a TOASTed value waits for the re-select, and no placeholder is published."""
    feed = Feed(make_table())
    feed.transaction(0x5000, update(ORDERS, ["1", LEFT_OUT]), xid=812)
    assert feed.records == []
    (waiting,) = feed.queue.held
    assert isinstance(waiting, Incomplete)
    assert (waiting.op, waiting.key, waiting.key_values, waiting.xid) == (b"u", b'{"id":1}', (b"1",), 812)
    assert waiting.values == [b"1", UNCHANGED]
    value = json.loads(waiting.render(b"u", b'{"id":1,"name":"asked"}', ["name"]))
    assert value["after"] == {"id": 1, "name": "asked"}
    assert (value["source"]["seq"], value["source"]["reselected"]) == (1, ["name"])


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "decoded"])
def test_everything_after_a_waiting_event_waits_behind_it(quick: bool) -> None:
    """Later events wait behind an event that waits for a query, so that the topic keeps its order."""
    feed = Feed(make_table(), quick=quick)
    feed(
        begin(0x5000),
        insert(ORDERS, ["1", "a"]),
        update(ORDERS, ["1", LEFT_OUT]),
        update(ORDERS, ["1", "b"]),
        delete(ORDERS, key=["1", None]),
        truncate(ORDERS),
        commit(0x5000),
    )
    assert outline(feed.records) == [("c", '{"id":1}', Version(0x5000, 1))]
    waiting, *rest = feed.queue.held
    assert isinstance(waiting, Incomplete)
    assert waiting.place.seq == 2
    assert all(isinstance(item, Record) for item in rest)
    assert outline([item for item in rest if isinstance(item, Record)]) == [
        ("u", '{"id":1}', Version(0x5000, 3)),
        ("d", '{"id":1}', Version(0x5000, 4)),
        (None, '{"id":1}', Version(0x5000, 4)),
        ("t", '{"__truncate":0}', Version(0x5000, 5)),
        ("t", '{"__truncate":1}', Version(0x5000, 5)),
    ]


def test_once_the_waiting_events_are_taken_the_stream_flows_again() -> None:
    """After capture takes the waiting events, new events are published directly again."""
    feed = Feed(make_table())
    feed(begin(0x5000), update(ORDERS, ["1", LEFT_OUT]))
    assert len(feed.queue.take_held()) == 1
    assert (feed.queue.held, feed.queue.held_bytes) == ([], 0)
    feed(insert(ORDERS, ["2", "b"]), commit(0x5000))
    assert outline(feed.records) == [("c", '{"id":2}', Version(0x5000, 2))]


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "decoded"])
def test_the_size_of_what_waits_is_known(quick: bool) -> None:
    """The size of waiting events counts old and new values."""
    wide = "x" * 10_000
    columns = [("id", INT8, True), ("name", TEXT, False), ("other", TEXT, False)]
    feed = Feed(make_table(columns=columns), quick=quick)
    feed(begin(0x5000), insert(ORDERS, ["1", wide, wide]))
    sizes = [feed.queue.held_bytes]
    feed(update(ORDERS, ["1", wide, LEFT_OUT]))
    sizes.append(feed.queue.held_bytes)
    feed(insert(ORDERS, ["2", wide, wide]))
    sizes.append(feed.queue.held_bytes)
    assert [size // 5000 for size in sizes] == [0, 2, 6]


# -- TRUNCATE ----------------------------------------------------------------------------------------------------------


def test_truncate_leaves_a_marker_in_every_partition_of_every_table() -> None:
    """A TRUNCATE writes a marker of one version into each partition of each table."""
    feed = Feed(make_table(), make_table(ITEMS, "items"), partitions=3)
    feed.transaction(
        0x5000, insert(ORDERS, ["1", "a"]), truncate(ORDERS, ITEMS, cascade=True), insert(ORDERS, ["1", "b"])
    )
    markers = feed.records[1:-1]
    assert [(record.topic, record.partition, record.key) for record in markers] == [
        (topic, partition, b'{"__truncate":%d}' % partition)
        for topic in ("shop.public.orders", "shop.public.items")
        for partition in range(3)
    ]
    assert {version_of(record) for record in markers} == {Version(0x5000, 2)}
    assert version_of(feed.records[-1]) == Version(0x5000, 3)
    assert {(value_of(record)["op"], value_of(record)["before"], value_of(record)["after"]) for record in markers} == {
        ("t", None, None)
    }


# -- deferrable keys ---------------------------------------------------------------------------------------------------


def test_keys_that_several_rows_passed_through_are_asked_for_at_the_commit() -> None:
    """After `SET id = id + 1` shared keys are queried at the commit, and the answers have the largest versions."""
    feed = Feed(make_table(columns=full(), identity="f", deferrable_key=True))
    feed.transaction(
        0x5000, update(ORDERS, ["2", "a"], old=["1", "a"]), update(ORDERS, ["3", "b"], old=["2", "b"]), xid=900
    )
    (asked,) = feed.queue.held
    assert isinstance(asked, Incomplete)
    assert (asked.key, asked.key_values, asked.values, asked.xid) == (b'{"id":2}', (b"2",), None, 900)
    assert Version.parse(asked.headers[0][1].decode()) == Version(0x5000, 4), "two changes, and the second was it"
    assert feed.numbering.version == Version(0x5000, 4)


def _shift(oid: int, count: int) -> list[bytes]:
    """`SET id = id + 1`: all keys but the first and the last are both entered and left."""
    return [update(oid, [str(n + 1), "a"], old=[str(n), "a"]) for n in range(1, count + 1)]


def _shifting(*, resume_after: Version = NOTHING_PUBLISHED, unpublished: bool = False) -> Feed:
    """Two tables in turn with an insert between; with `unpublished` the first table is no longer published."""
    columns = full()
    feed = Feed(
        make_table(columns=columns, identity="f", deferrable_key=True),
        make_table(ITEMS, "items", columns, identity="f", deferrable_key=True),
        resume_after=resume_after,
    )
    if unpublished:
        feed.rules.on_table_unpublished(ORDERS)
    by_turns = [each for pair in zip(_shift(ORDERS, 4), _shift(ITEMS, 4), strict=True) for each in pair]
    # Both keys of a swap become ambiguous with one change.
    swap = [update(ITEMS, ["9", "a"], old=["8", "a"]), update(ITEMS, ["8", "b"], old=["9", "b"])]
    feed.transaction(0x5000, *by_turns, insert(ORDERS, ["100", "a"]), *swap)
    return feed


def test_corrections_are_numbered_behind_the_changes_that_made_them_necessary() -> None:
    """11 changes, so the one that change k asks for is 11 + k: all beat the transaction's events, in one order."""
    asked = [(item.place.seq, item.key.decode()) for item in _shifting().queue.held if isinstance(item, Incomplete)]
    assert asked == [
        (14, '{"id":2}'),
        (15, '{"id":2}'),
        (16, '{"id":3}'),
        (17, '{"id":3}'),
        (18, '{"id":4}'),
        (19, '{"id":4}'),
        (22, '{"id":9}'),
        (22, '{"id":8}'),
    ]


@pytest.mark.parametrize("unpublished", [False, True], ids=["both tables", "one is unpublished by then"])
@pytest.mark.parametrize("seq", range(24))
def test_a_restart_between_two_corrections_asks_for_the_rest(seq: int, unpublished: bool) -> None:
    """As with changes: exactly what is above progress, whatever became of another table meanwhile."""
    whole = [item for item in _shifting().queue.held if isinstance(item, Incomplete)]
    expected = [
        item for item in whole if item.place.seq > seq and not (unpublished and item.table.relation.oid == ORDERS)
    ]
    resumed = _shifting(resume_after=Version(0x5000, seq), unpublished=unpublished).queue.held
    assert [(item.table.topic, item.key, item.headers) for item in resumed if isinstance(item, Incomplete)] == [
        (item.table.topic, item.key, item.headers) for item in expected
    ]


def test_a_swap_asks_for_both_keys() -> None:
    """Both keys of a swap are queried, since each is entered and left."""
    feed = Feed(make_table(columns=full(), identity="f", deferrable_key=True))
    feed.transaction(0x5000, update(ORDERS, ["2", "a"], old=["1", "a"]), update(ORDERS, ["1", "b"], old=["2", "b"]))
    assert {item.key for item in feed.queue.held} == {b'{"id":1}', b'{"id":2}'}


def test_plain_changes_under_a_deferrable_key_ask_nothing() -> None:
    """A key that was only entered or only left needs no query."""
    feed = Feed(make_table(columns=full(), identity="f", deferrable_key=True))
    feed.transaction(0x5000, insert(ORDERS, ["1", "a"]), delete(ORDERS, old=["2", "b"]))
    feed.transaction(0x6000, delete(ORDERS, old=["1", "a"]))
    assert not feed.queue.held
    assert [op for op, _, _ in outline(feed.records)] == ["c", "d", None, "d", None]


def test_a_table_described_again_in_the_middle_of_a_transaction_loses_nothing() -> None:
    """A repeated Relation message keeps the transaction's counts and key tracking."""
    columns = full()
    feed = Feed(make_table(columns=columns, identity="f", deferrable_key=True))
    feed(begin(0x5000), update(ORDERS, ["2", "a"], old=["1", "a"]))
    feed.rules.on_table(make_table(columns=columns, identity="f", deferrable_key=True))
    feed(update(ORDERS, ["3", "b"], old=["2", "b"]), commit(0x5000))
    orders = [value_of(record)["transaction"]["data_collection_order"] for record in feed.records if record.value]
    assert orders == [1, 2, 3, 4]
    assert [item.key for item in feed.queue.held] == [b'{"id":2}']


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "decoded"])
def test_a_table_that_changed_is_read_by_its_new_columns(quick: bool) -> None:
    """Rows after a Relation message have its columns, and rows before it the earlier ones."""
    feed = Feed(make_table(), quick=quick)
    feed(begin(0x5000), insert(ORDERS, ["1", "a"]))
    feed.rules.on_table(make_table(columns=[*ID_AND_NAME, ("paid", BOOL, False)]))
    feed(insert(ORDERS, ["2", "b", "t"]), commit(0x5000))
    assert [value_of(record)["after"] for record in feed.records] == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b", "paid": True},
    ]


# -- after a restart ---------------------------------------------------------------------------------------------------

REPLAY = [
    (0x5000, [insert(ORDERS, ["1", "a"]), insert(ORDERS, ["2", "a"])]),
    (
        0x6000,
        [
            insert(ORDERS, ["3", "a"]),
            update(ORDERS, ["4", "b"], key=["3", None]),
            update(ORDERS, ["1", LEFT_OUT]),
            truncate(ORDERS),
            delete(ORDERS, key=["2", None]),
        ],
    ),
    (0x7000, [insert(ORDERS, ["5", "a"])]),
]


def _versions(feed: Feed) -> list[Version]:
    return [Version.parse(item.headers[0][1].decode()) for item in [*feed.records, *feed.queue.held]]


def _replayed(resume_after: Version, *, quick: bool = True) -> Feed:
    feed = Feed(make_table(), resume_after=resume_after, quick=quick)
    for commit_lsn, messages in REPLAY:
        feed.transaction(commit_lsn, *messages)
    return feed


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "decoded"])
@pytest.mark.parametrize(
    "resume_after",
    [
        Version(0, 0),
        Version(0x5000, 0),
        Version(0x5000, 1),
        Version(0x5000, 2),
        Version(0x5800, 0),
        Version(0x6000, 1),
        Version(0x6000, 2),
        Version(0x6000, 3),
        Version(0x6000, 4),
        Version(0x6000, 5),
        Version(0x7000, 1),
        Version(0x8000, 0),
    ],
    ids=str,
)
def test_what_was_published_is_left_out_and_everything_else_is_not(resume_after: Version, quick: bool) -> None:
    """After a restart exactly the versions above progress are published, also within a transaction."""
    everything = _versions(_replayed(Version(0, 0)))
    assert _versions(_replayed(resume_after, quick=quick)) == [v for v in everything if v > resume_after]


def test_events_after_a_restart_are_the_same_as_without_it() -> None:
    """Counts and versions are the same with and without a restart."""
    whole, resumed = _replayed(Version(0, 0)), _replayed(Version(0x6000, 2))
    expected = [item for item in [*whole.records, *whole.queue.held] if _is_after(item, Version(0x6000, 2))]
    found = [*resumed.records, *resumed.queue.held]
    assert [item for item in found if isinstance(item, Record)] == [i for i in expected if isinstance(i, Record)]
    assert [item.place for item in found if isinstance(item, Incomplete)] == [
        item.place for item in expected if isinstance(item, Incomplete)
    ]


def _is_after(item: Record | Incomplete, version: Version) -> bool:
    return Version.parse(item.headers[0][1].decode()) > version


def test_progress_never_falls_while_transactions_are_replayed() -> None:
    """Progress recorded during a replay is never below the earlier one."""
    feed = Feed(make_table(), resume_after=Version(0x6000, 2))
    assert feed.numbering.version == Version(0x6000, 2)
    feed.transaction(0x5000, insert(ORDERS, ["1", "a"]))
    assert feed.numbering.version == Version(0x6000, 2)
    feed(begin(0x6000), insert(ORDERS, ["3", "a"]))
    assert feed.numbering.version == Version(0x6000, 2)
    assert feed.numbering.is_replaying
    feed(insert(ORDERS, ["4", "a"]))
    assert not feed.numbering.is_replaying
    feed(insert(ORDERS, ["5", "a"]))
    assert feed.numbering.version == Version(0x6000, 3)


def test_key_changes_seen_before_a_restart_still_count() -> None:
    """Keys entered in the skipped part of a transaction count when the rest leaves them."""
    feed = Feed(make_table(columns=full(), identity="f", deferrable_key=True), resume_after=Version(0x5000, 1))
    feed.transaction(0x5000, update(ORDERS, ["2", "a"], old=["1", "a"]), update(ORDERS, ["3", "b"], old=["2", "b"]))
    assert [item.key for item in feed.queue.held] == [b'{"id":2}']


# -- what the server must not send -------------------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "decoded"])
@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([insert(ORDERS, ["1", "a"])], id="a row outside a transaction"),
        pytest.param([begin(0x5000), begin(0x6000)], id="a transaction inside another"),
        pytest.param([commit(0x5000)], id="a commit without begin"),
        pytest.param([begin(0x5000), insert(999, ["1", "a"])], id="an unknown table"),
        pytest.param([begin(0x5000), truncate(999)], id="a truncate of an unknown table"),
        pytest.param([begin(0x5000), insert(ORDERS, ["1"])], id="a column too few"),
        pytest.param([begin(0x5000), insert(ORDERS, ["1", "a", "b"])], id="a column too many"),
        pytest.param([begin(0x5000), update(ORDERS, ["1", "a"], key=["1"])], id="an old key that is too short"),
        pytest.param([begin(0x5000), delete(ORDERS, key=[])], id="an old row without columns"),
        pytest.param([begin(0x5000), insert(ORDERS, [None, "a"])], id="a key that is null"),
        pytest.param([begin(0x5000), insert(ORDERS, ["1", b"\xff"])], id="text that is not UTF-8"),
        pytest.param([begin(0x5000), update(ORDERS, ["1", "a"], key=[None, None])], id="an old key that is null"),
    ],
)
def test_a_broken_stream_is_refused(messages: list[bytes], quick: bool) -> None:
    """An inconsistent stream is refused, since skipping would lose rows."""
    feed = Feed(make_table(), quick=quick)
    with pytest.raises(ProtocolError):
        feed(*messages)
    assert feed.records == []


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "decoded"])
@pytest.mark.parametrize(
    "late",
    [
        pytest.param(insert(ORDERS, ["2", "a"]), id="insert"),
        pytest.param(update(ORDERS, ["1", "b"]), id="update"),
        pytest.param(update(ORDERS, ["1", LEFT_OUT]), id="an update with a hole"),
        pytest.param(update(ORDERS, ["2", "b"], key=["1", None]), id="key change"),
        pytest.param(delete(ORDERS, key=["1", None]), id="delete"),
        pytest.param(truncate(ORDERS), id="truncate"),
    ],
)
def test_a_change_after_the_commit_is_refused(late: bytes, quick: bool) -> None:
    """A change outside a transaction is refused, since the last version would hide it after a restart."""
    feed = Feed(make_table(), quick=quick)
    feed.transaction(0x5000, insert(ORDERS, ["1", "a"]))
    with pytest.raises(ProtocolError):
        feed(late)
    assert outline(feed.all) == [("c", '{"id":1}', Version(0x5000, 1))]


def test_a_refusal_shows_no_row_values() -> None:
    """A refusal has no row values, since errors are logged."""
    feed = Feed(make_table())
    with pytest.raises(ProtocolError) as refusal:
        feed(begin(0x5000), insert(ORDERS, ["1", b"secret\xff"]))
    assert "secret" not in str(refusal.value)
    assert "public.orders" in str(refusal.value)
    assert refusal.value.__suppress_context__


# -- the quick way and the ordinary way --------------------------------------------------------------------------------

_NAMES = st.one_of(st.none(), st.text(max_size=8), st.just(LEFT_OUT))
_ROW = st.tuples(st.integers(0, 9).map(str), _NAMES)
_WHOLE = st.tuples(st.integers(0, 9).map(str), st.one_of(st.none(), st.text(max_size=8)))
_DEFAULT_IDENTITY = st.one_of(
    st.builds(lambda row: insert(ORDERS, row), _WHOLE),
    st.builds(lambda row: update(ORDERS, row), _ROW),
    st.builds(lambda row, key: update(ORDERS, row, key=[key, None]), _ROW, st.integers(0, 9).map(str)),
    st.builds(lambda key: delete(ORDERS, key=[key, None]), st.integers(0, 9).map(str)),
)
_FULL_IDENTITY = st.one_of(
    st.builds(lambda row: insert(ITEMS, row), _WHOLE),
    st.builds(lambda row, old: update(ITEMS, row, old=old), _ROW, _WHOLE),
    st.builds(lambda old: delete(ITEMS, old=old), _WHOLE),
    st.just(truncate(ITEMS, ORDERS)),
)
_TRANSACTIONS = st.lists(st.lists(st.one_of(_DEFAULT_IDENTITY, _FULL_IDENTITY), max_size=6), max_size=4)


@given(_TRANSACTIONS, st.integers(0, 4), st.integers(0, 6))
@settings(max_examples=150, deadline=None)
def test_the_fast_path_gives_the_same_records(transactions: list[list[bytes]], position: int, seq: int) -> None:
    """The fast path and the decoder give the same records, wherever the stream resumes."""
    feeds = [
        Feed(
            make_table(),
            make_table(ITEMS, "items", full(), identity="f"),
            resume_after=Version(position * 0x1000, seq),
            quick=quick,
        )
        for quick in (True, False)
    ]
    for feed in feeds:
        for number, messages in enumerate(transactions, start=1):
            feed.transaction(number * 0x1000, *messages)
    quick, decoded = feeds
    assert quick.records == decoded.records
    assert [_comparable(item) for item in quick.queue.held] == [_comparable(item) for item in decoded.queue.held]
    assert quick.numbering.version == decoded.numbering.version


def _comparable(item: Record | Incomplete) -> tuple[object, ...]:
    return tuple(item) if isinstance(item, Record) else (item.op, item.before, item.values, item.key, item.place)


@given(
    st.sampled_from([insert(ORDERS, ["1", "a"]), update(ORDERS, ["1", "é"]), insert(ORDERS, ["12", None])]), st.data()
)
@settings(max_examples=250, deadline=None)
def test_damaged_rows_are_published_or_refused(row: bytes, data: st.DataObject) -> None:
    """Damaged bytes on the fast path raise only ProtocolError, and then nothing is published."""
    damaged = bytearray(row[: data.draw(st.integers(6, len(row)))])
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    feed = Feed(make_table())
    feed(begin(0x5000))
    try:
        feed(bytes(damaged))
    except ProtocolError:
        assert feed.records == []
