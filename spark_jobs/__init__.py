"""Spark jobs: they read, transform and hand to a sink."""
