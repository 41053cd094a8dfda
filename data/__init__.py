"""What we know about problems and rollouts: schemas, the store, sources, curation, hints, metrics."""
