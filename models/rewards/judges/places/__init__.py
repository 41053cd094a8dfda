"""Rewards of places: boxes, points, spans, graphs and paths, which a completion states as JSON."""
