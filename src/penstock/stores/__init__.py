"""Storage for what is too large or too durable for Redis: tables, vectors and files."""
