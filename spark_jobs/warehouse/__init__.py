"""Writes the warehouse: applies batches of the table topics to the history tables and to the current tables."""
