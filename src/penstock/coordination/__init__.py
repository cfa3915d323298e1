"""Primitives by which processes agree: once, limits, windows, runs, slots, feeds, cache."""
