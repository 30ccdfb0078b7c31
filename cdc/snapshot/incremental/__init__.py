"""The incremental snapshot: chunks that are read while capture streams, between a low and a high watermark."""
