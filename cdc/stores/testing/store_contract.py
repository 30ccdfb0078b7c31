"""What every store promises: generations and positions. Tests of `cdc.stores.contract.Store`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec
import pytest

from cdc.errors import RefusedError
from cdc.lsn import Version
from cdc.stores.contract import (
    Generation,
    Position,
    PositionLostError,
    Store,
    TableSchema,
    TakenOverError,
    TopicPosition,
)
from cdc.stores.testing.rows import table

#: The prefix of the topics that the tests name. No topic exists.
TOPICS = "contract"
SOME = Position(
    topics={"t.public.orders": TopicPosition("an-id", (3, 5))}, version=Version(80, 2), lsn=80, caught_up_ms=9
)


class OpenStore(Protocol):
    """Opens the store that is tested. Every call returns another object for the same store."""

    def __call__(self) -> Any: ...


class StoreContract:
    """The tests for any store. A subclass defines the fixture `open_store`."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Return a function that opens the store. It is empty when a test begins."""
        raise pytest.UsageError(f"{type(self).__name__} does not define the fixture `open_store`.")

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Iterator[Store]:
        opened = open_store()
        yield opened
        opened.close()

    @pytest.fixture
    def orders(self) -> TableSchema:
        return table(TOPICS)

    @pytest.fixture
    def generation(self, store: Store, orders: TableSchema) -> Generation:
        return store.create_generation([orders])

    def test_the_store_is_good(self, store: Store) -> None:
        """`check` finds nothing wrong with a server that is set up as it should be."""
        found = store.check()
        assert found
        assert "fail" not in {each.level for each in found}  # a cluster is red while an index is being created

    def test_a_position_is_kept_and_given_back(self, store: Store, generation: Generation) -> None:
        """Every reader sees the saved position with its owner and time."""
        assert store.take(generation, "one").topics == {}
        saved = store.save_position(generation, SOME)
        assert saved == store.position(generation)
        assert (saved.owner, saved.topics, saved.version, saved.lsn) == ("one", SOME.topics, SOME.version, SOME.lsn)
        assert saved.written_ms > 0

    def test_two_drivers_on_one_store_and_one_stops(
        self, open_store: OpenStore, store: Store, generation: Generation
    ) -> None:
        """The last driver that takes a generation has it; the other cannot save a position."""
        store.take(generation, "one")
        store.save_position(generation, SOME)
        second = open_store()
        found = second.take(generation, "two")
        assert found.topics == SOME.topics
        with pytest.raises(TakenOverError):
            store.save_position(generation, SOME)
        later = second.save_position(generation, msgspec.structs.replace(SOME, lsn=99))
        assert store.position(generation) == later
        second.close()

    def test_generations_come_serve_and_go(self, store: Store, generation: Generation, orders: TableSchema) -> None:
        """No generation serves before the first switch, the serving one cannot be dropped, and a dropped one has no
        position.
        """
        assert store.serving() is None
        store.switch(generation)
        serving = store.serving()
        assert serving is not None
        assert (serving.number, serving.state) == (generation.number, "settled")
        second = store.create_generation([orders])
        assert [each.number for each in store.list_generations()] == [generation.number, second.number]
        with pytest.raises(RefusedError):
            store.drop(serving)
        store.take(generation, "one")
        store.switch(second)
        store.drop(generation)
        store.drop(generation)
        assert [each.number for each in store.list_generations()] == [second.number]
        assert store.position(generation) is None
        with pytest.raises(PositionLostError):
            store.take(generation, "one")
        with pytest.raises(PositionLostError):
            store.save_position(generation, SOME)
