"""Stores of vectors: Qdrant's engine in the data directory, or a Qdrant server."""
