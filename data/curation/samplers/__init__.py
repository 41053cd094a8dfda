"""Samplers: `(candidates, num, rng, *, settings) -> Draw`: at most `num` candidates, without replacement."""
