"""`tailrace recover`: repairs a pipeline that capture refuses to continue, with a new slot and snapshots."""
