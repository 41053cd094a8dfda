"""Hint strategies: `(problem, fraction, *, settings) -> text`, NoHint, or None: every text reveals the answer."""
