"""Vectors behind one small door: Qdrant's engine in the data directory, or a Qdrant server."""
