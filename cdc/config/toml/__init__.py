"""Reading `tailrace.toml` and writing it out again."""
