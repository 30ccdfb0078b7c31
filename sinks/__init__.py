"""Stores: one module per kind of store, no Spark import."""
