"""Changes to the source and the broker outside capture: `tailrace init` prepares a source, `tailrace remove` cleans up."""
