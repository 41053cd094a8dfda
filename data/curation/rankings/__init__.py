"""Rankings of candidate problems by one number each, highest first: `(candidates, *, settings) -> (N,) numbers`."""
