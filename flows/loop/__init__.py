"""The training loop: order of the stages, inputs of a run, and its forecast."""
