"""Measures: what forward passes of a frozen model say of problems and rollouts."""
