"""Capture: reads the replication stream and publishes its changes to the table topics."""
