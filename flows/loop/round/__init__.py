"""One round of a training: its stages, and what it leaves to the next."""
