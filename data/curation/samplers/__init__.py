"""Samplers: `(candidates, num, rng, *, settings) -> Draw`: at most `num` candidates.

Without replacement, but for `repeated`, which fills a batch with few problems.
"""
