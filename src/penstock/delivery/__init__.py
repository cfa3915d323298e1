"""Shared by topics and queues: retries, failures, dependencies, handler threads, audit."""
