"""Alerts: when an alert is raised, how it is delivered, and the journal of recent problems."""
