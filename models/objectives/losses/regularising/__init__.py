"""Regularisers: losses that no weight multiplies, beside those of the reward."""
