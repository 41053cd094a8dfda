"""Selection of the problems to sample next: difficulty, filters, rankings, samplers, plans."""
