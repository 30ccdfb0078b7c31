"""The audit: read the source, the topics and the stores, compare them, recheck differences, repair rows. No Spark."""
