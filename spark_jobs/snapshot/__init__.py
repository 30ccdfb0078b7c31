"""The Spark drivers of the initial and the incremental snapshot."""
