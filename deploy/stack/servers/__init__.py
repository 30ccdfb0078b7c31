"""The four servers of the local stack: how each is configured, started and stopped."""
