"""Rewards that run a completion's program."""
