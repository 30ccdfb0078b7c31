"""Checks the documentation and generates its reference of commands."""
