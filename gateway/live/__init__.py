"""Live streams: lines in, a write-ahead log of them, updates out."""
