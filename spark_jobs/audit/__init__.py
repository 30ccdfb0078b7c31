"""The audit as a Spark job: it reads the source, the topic and each store once per table and compares them."""
