"""`tailrace run`: one process that starts the others, watches them, and shows how far each hop is.

Nothing here reads a row. Each part is the same command that a person would start, as a process of its own.
"""
