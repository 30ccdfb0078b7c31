"""One module per command: wiring and printing only.

A command imports Spark jobs and the warehouse inside the function that runs them. Their import takes 0.2 to 0.5 s and
20 to 65 MB, which `--help` and the modes of a command that need no Spark save. Everything else is imported at the top.
"""
