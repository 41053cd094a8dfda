"""A policy: sampling, judging, training."""
