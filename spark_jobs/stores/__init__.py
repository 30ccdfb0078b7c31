"""From the topics into the stores: what runs in Spark's tasks, and what the driver keeps in mind between batches."""
