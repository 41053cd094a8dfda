"""What `gradus lab` found: gradients of methods on the same rows, side by side."""
