"""Windows: items gathered by key into batches, each of which becomes one job or message."""
