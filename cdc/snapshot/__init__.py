"""Copies: rows that the log does not carry, because they were there before it was read or changed without a word."""
