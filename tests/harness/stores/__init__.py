"""Stores under test: opened, synced, audited, tampered with and restored."""
