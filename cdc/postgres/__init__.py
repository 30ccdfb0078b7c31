"""The source: connections, the catalog, the replication stream, and what a snapshot shows."""
