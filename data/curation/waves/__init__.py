"""Waves: `(round, rng, *, settings) -> Planned`, or None: what a round samples after its first rollouts."""
