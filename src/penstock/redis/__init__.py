"""The door to Redis: knows the server, not the work."""
