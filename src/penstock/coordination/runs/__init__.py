"""Runs: what a pass over many items has done, what failed, and where it continues."""
