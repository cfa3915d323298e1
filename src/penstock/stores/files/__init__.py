"""Files below a root folder, opened without following links out of it."""
