"""The pgoutput protocol: message types and their decoder. No I/O."""
