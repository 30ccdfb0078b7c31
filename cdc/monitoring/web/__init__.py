"""The dashboard: the web server, its page, its JSON API and `/metrics`."""
