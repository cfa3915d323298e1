"""Where pipelines keep what is too large or too lasting for Redis: tables, vectors and files."""
