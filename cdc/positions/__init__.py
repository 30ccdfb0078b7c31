"""Positions: capture's progress record, the stores' positions, and waiting for them."""
