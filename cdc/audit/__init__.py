"""Is a store what the source is? Reading both sides, comparing them, looking again, mending. Knows no Spark."""
