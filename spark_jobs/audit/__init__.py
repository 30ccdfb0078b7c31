"""The audit's one pass over each side, on Spark."""
