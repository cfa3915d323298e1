"""The server used when no address is given: one Valkey for each data directory."""
