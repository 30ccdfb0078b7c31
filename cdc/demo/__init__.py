"""The demo: a pipeline on the local servers, whose source is a small shop with continuous writes.

`shop` contains the schema and `writer` the client that writes. Tests use both without the rest.
"""
