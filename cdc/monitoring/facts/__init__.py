"""Readers of figures: the source, the slot, the topics, the stores."""
