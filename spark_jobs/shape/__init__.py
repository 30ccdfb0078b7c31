"""Shapes: which rows, columns and computed fields of a table a store gets (docs/guides/shaping.md)."""
