"""Snapshots: publish rows that the WAL does not carry.

Such rows existed before the slot was created, or changed without row events.
"""
