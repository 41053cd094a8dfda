"""One update on several processes: who computes which packs, and a model whose parameters are divided among them."""
