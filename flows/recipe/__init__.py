"""A recipe: its settings, their checks before a run starts, and the course of the run that follows from them."""
