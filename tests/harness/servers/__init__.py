"""The servers that tests use: those of the whole run, and dedicated ones that a test may kill."""
