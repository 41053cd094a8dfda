"""Samplers: which of the candidate problems are drawn, without replacement, from an explicit generator.

    variance(candidates, 64, np.random.default_rng(7), explore_frac=0.25)     # row indices in draw order, weights

A sampler is `(candidates, num, rng, *, settings) -> Draw`, pure given its generator. A draw asks for at most as many as
there are; that fewer were there shows in the length of the result.
"""

from gradus.data.curation.samplers.draw import Draw

__all__ = ["Draw"]
