"""From rows to events: table encoders, values, masks, the envelope, and the compiled loops."""
