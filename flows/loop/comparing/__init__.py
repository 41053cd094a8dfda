"""Comparisons: their arguments, their methods, and the values tried of each."""
