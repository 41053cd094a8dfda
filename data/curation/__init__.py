"""Which problems are sampled next: difficulty, filters, rankings, samplers, plans."""
