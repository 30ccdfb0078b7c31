"""Tailrace's own logical messages in the WAL: signatures and the heartbeat."""
