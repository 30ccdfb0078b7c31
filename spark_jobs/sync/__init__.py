"""`tailrace sync`: reads the table topics from a store's position onwards and applies them, batch by batch."""
