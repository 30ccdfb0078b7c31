"""Tailrace except its stores (`sinks`), its Spark jobs (`spark_jobs`) and its local servers (`deploy`)."""

__version__ = "0.1.0"
