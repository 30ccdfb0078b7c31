"""Capture: everything of Tailrace that is not a store (`sinks`), a Spark job (`spark_jobs`) or a server (`deploy`)."""

__version__ = "0.1.0"
