"""`tailrace sync`: reads the topics from a store's position on, batch by batch."""
