"""One round of a training: its stages, and the state that it leaves to the next."""
