"""The Elasticsearch sink: one alias per table, which points at the table's index in the serving generation."""
