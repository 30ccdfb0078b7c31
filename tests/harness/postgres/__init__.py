"""The source under test: a database per test, its catalog, and clients that write to it."""
