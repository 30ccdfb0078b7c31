"""Redis: one hash per row, guarded by version in Lua, rebuilt in place."""
