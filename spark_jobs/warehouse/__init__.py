"""Feeds the warehouse: batches of the topics become versions of the history, and rows of the current tables."""
