"""Set-up and removal outside capture: `tailrace init` prepares a source, `tailrace remove` removes a pipeline."""
