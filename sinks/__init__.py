"""Stores: one package per kind of store. Nothing here imports Spark."""
