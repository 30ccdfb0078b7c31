"""Spark jobs that read topics or tables, transform rows and pass them to a sink."""
