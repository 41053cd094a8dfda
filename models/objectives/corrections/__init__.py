"""Importance weights of what the trainer's own policy did not sample: `(rows, *, settings) -> ((M,), metrics)`.

The sampler may be another engine, or an older policy. Each token's loss is multiplied by w = p_trainer / p_sampler,
both at the start of the update and without gradient. Tokens count here that have the log-probs of a sampler.
Left out: truncated sampling (top-k, top-p), per-step weights between token and sequence, baselines for the bias.
"""
