"""Waves about programs that were run."""
