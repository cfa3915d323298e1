"""Names, families and hash slots of keys. Each engine spells its own keys, in its `keys.py`."""
