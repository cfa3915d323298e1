"""The one model for reading and administering, behind CLI, HTTP, console and metrics.

The working path never goes through here. Each call states its cost.
"""
