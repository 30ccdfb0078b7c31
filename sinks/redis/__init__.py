"""The Redis sink: one hash per row. Lua scripts compare versions before they write. A rebuild happens in place."""
