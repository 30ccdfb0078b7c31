"""The lasting state of a pipeline as an earlier Tailrace left it: what an upgrade finds."""
