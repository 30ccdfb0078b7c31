"""Access to Kafka: topics, control topics, the producer, and the broker's clock."""
