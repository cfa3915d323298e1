"""Stores of tables: SQLite in the data directory, or PostgreSQL by its address."""
