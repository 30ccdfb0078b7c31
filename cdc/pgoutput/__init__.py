"""The pgoutput protocol: messages and their decoder. Bytes in, facts out, no I/O."""
