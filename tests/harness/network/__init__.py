"""Proxies, TLS and an HTTP receiver between a program and a server."""
