"""Start of a capture session: slot, fence, checks, and the first start of a pipeline with its initial snapshot."""
