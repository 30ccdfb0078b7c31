"""`tailrace bootstrap`: builds a new generation of a store from the topics, without reading the source."""
