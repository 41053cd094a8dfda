"""Engines: what samples completions from a policy."""
