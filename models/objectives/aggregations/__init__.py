"""Aggregations: `(rows, *, settings) -> (M,)`, by how much the loss of each token counts in a step.

The loss of a step is the sum of its token losses times these coefficients. They are made from all rows of the step, so
that packs add up to the same number however the step is divided.
"""
