"""Documents for retrieval: read, split, embedded, indexed, with a status anyone can trust."""
