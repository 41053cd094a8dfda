"""Data of problems and rollouts: schemas, the store, sources, curation, hints, metrics."""
