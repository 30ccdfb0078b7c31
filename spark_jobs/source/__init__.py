"""The Spark data source `tailrace`: a table's topic as a typed DataFrame, batch and stream."""
