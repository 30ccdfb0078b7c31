"""From pgoutput messages to records: numbers, rules, and the order in which records leave. No I/O."""
