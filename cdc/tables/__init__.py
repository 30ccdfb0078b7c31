"""Tables beyond the stream: their state in the catalog, their recorded state, and what changed between the two."""
