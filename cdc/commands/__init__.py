"""One module per command; each wires configuration to library code and prints the result."""
