"""Compares the source with topics and stores by full content, and our events with Debezium's."""
