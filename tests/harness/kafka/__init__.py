"""Reads and changes topics without the product's code."""
