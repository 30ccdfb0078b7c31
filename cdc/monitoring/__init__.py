"""Monitoring: one status record of every hop, which `tailrace lag`, `/metrics`, the dashboard and the alerts share.

One reader each queries Postgres, Kafka and the stores (`source_facts`, `kafka_facts`, `store_facts`). `status_builder`
combines their answers into one `status_record.PipelineStatus`. `health_rules` derives the health of each hop from it.
Monitoring reads only; it moves no rows.
"""
