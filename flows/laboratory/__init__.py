"""`gradus lab`: the objectives of methods on the stored rounds of runs, without a token sampled."""
