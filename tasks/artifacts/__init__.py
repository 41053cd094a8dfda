"""Artifacts that a stage reads: resolved from what a person names, and loaded."""
