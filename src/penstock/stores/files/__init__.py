"""Files in folders that nobody leads out of."""
