"""Rewards of structures: sets, calls, rankings, JSON, constraints, assignments, dates."""
