"""The results of `gradus lab`: gradients of methods on the same rows, side by side."""
