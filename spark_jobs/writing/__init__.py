"""How Spark jobs write a store: the contract of each way, and the choice of one for a kind of store."""
