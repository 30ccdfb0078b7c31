"""What of a table a store gets, and in which form: `where` and `select` in Spark SQL (docs/guides/shaping.md)."""
