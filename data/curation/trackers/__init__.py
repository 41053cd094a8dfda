"""Trackers: `(before, round, *, settings) -> {column: values}`: the rows that change of what is kept between rounds."""
