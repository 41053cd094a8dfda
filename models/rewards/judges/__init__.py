"""Rewards: `(row, gold, max_chars, *, settings) -> Verdict`."""
