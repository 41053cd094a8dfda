"""Rewards of texts: words, characters and edits shared with a reference."""
