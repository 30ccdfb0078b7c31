"""`tailrace recover`: a pipeline that capture refuses to go on with gets a new slot, and copies every table again."""
