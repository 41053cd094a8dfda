"""Comparisons that tune: their arguments, and the values tried of each method."""
