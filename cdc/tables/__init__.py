"""The state of tables: read from the catalog, recorded in Kafka, and the differences between the two."""
