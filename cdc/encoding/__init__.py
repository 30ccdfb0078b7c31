"""Encodes rows as events: table encoders, values by type, masks, the envelope, and the compiled loops."""
