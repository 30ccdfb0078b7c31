"""The Spark drivers of the initial snapshot and of incremental snapshots."""
