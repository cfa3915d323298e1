"""Runs: what a pass over many items has done, what failed in it, and where it goes on."""
