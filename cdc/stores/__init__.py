"""Stores as the pipeline sees them: the contract that sinks implement, the registry of kinds, row ids, audit scans."""
