"""The incremental snapshot: chunks read while the stream goes on, between a low and a high watermark."""
