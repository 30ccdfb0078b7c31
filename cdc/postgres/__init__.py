"""The source database: connections, catalog queries, the replication stream, and snapshot visibility."""
