"""Commands that only read: lag, wait, tail, audit, query, and the dashboard."""
