"""Commands that repair, maintain or remove."""
