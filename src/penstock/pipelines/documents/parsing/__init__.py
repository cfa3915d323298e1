"""Files into chunks of text, in processes that may die of it."""
