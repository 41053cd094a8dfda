"""Artifacts that a stage reads: resolved from references, folders and files, and loaded."""
