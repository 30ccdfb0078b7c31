"""Initial and incremental snapshots under test."""
