"""The demo: a small shop that is written to all the time, on the local servers.

`shop` holds its tables, `writer` the client that writes; tests use both without the rest.
"""
