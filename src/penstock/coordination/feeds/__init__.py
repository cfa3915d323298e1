"""Feeds: numbered events that many read, from a snapshot on or from where they were."""
