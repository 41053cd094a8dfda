"""Token weights: `(rows, *, settings) -> ((M,) weights, metrics)`, from all rows of an optimiser step.

Each token's loss is multiplied by its weights; the denominator of the aggregation stays that of all counted tokens.
Metrics are (M,), reported as those of losses are.
"""
