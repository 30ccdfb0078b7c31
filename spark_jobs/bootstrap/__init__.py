"""`tailrace bootstrap`: builds a new generation of a store from the topics alone."""
