"""Capture: from the replication stream to the topics."""
