"""Alerts: when an operator is told, how the alert is delivered, and the journal of what went wrong."""
