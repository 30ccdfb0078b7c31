"""One pipeline under test: its processes, its tables' states, and its parts without a server."""
