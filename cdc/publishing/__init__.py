"""Exactly-once publishing: the transactional producer, and the parked rows that are too large for it."""
