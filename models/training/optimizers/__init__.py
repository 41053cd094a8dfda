"""Optimisers by name: which there are, and how one is made and kept."""
