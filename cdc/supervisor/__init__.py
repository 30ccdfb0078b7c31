"""`tailrace run`: a supervisor that starts the pipeline's processes, restarts them, and shows the lag of each hop.

Each part is a child process that runs the same command that an operator would type. The supervisor reads no rows.
"""
