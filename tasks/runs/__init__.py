"""Records of runs: their journals, and the facts derived from them."""
