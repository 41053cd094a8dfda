"""A recipe: its settings, what is refused before a run starts, what is decided from them alone."""
