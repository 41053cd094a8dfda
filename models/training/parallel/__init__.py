"""One update on several processes: packs, and the parameters of a model, divided among them."""
