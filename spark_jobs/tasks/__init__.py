"""Code that runs in Spark tasks: read a range of a topic, keep the latest change of each key, write it, park rows."""
