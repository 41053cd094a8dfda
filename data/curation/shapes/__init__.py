"""Shapes: `(rows, [rng], *, settings) -> {name: (N,)}`: what of the rows of a round is learned from, and how."""
