"""One module per command: wiring and printing only.

A command imports Spark jobs and the warehouse inside the function that runs them. Their import takes 0.3 to 0.6 s and
30 MB, which `--help` and the modes of a command that need no Spark save. Everything else is imported at the top.
"""
