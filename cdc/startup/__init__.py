"""How capture starts: the slot, the fence, the checks, and the first start with its initial snapshot."""
