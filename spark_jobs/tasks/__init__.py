"""What runs inside Spark's tasks: read a range of a topic, keep the latest change of each key, write, park."""
