"""What topics and queues share: how a handler ends, what follows, and who did what."""
