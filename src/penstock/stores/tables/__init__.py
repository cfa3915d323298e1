"""Tables behind one small door: SQLite in the data directory, or PostgreSQL by its address."""
