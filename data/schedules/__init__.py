"""Schedules: `(now, *, settings) -> number` of a setting in a round, from what the rounds before recorded."""
