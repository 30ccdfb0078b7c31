"""The tests of the store contract, for authors of sinks. They need pytest; Tailrace itself does not import them.

A sink's tests subclass one class, and say how to open a store on an empty server:

    pytest.register_assert_rewrite("cdc.stores.testing")  # in conftest.py: shows the values of a failed assertion
    from cdc.stores.testing.row_store_contract import RowStoreContract

    class TestMySink(RowStoreContract):
        @pytest.fixture
        def open_store(self, tmp_path: Path) -> OpenStore:
            return lambda: MyStore("store", MySettings(path=tmp_path), "shop")

`row_store_contract` tests a `RowStore`, `store_contract` what a `TableStore` promises too.
"""
