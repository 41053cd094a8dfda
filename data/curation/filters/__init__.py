"""Filters: `(candidates, *, settings) -> Selection`: which problems stay, and why each other one is dropped.

Reasons are a handful of sentences a filter, so that they can be counted. An unmeasured problem is kept by the filters
on difficulty unless `unmeasured="drop"`: dropping it silently would mean that it is never measured.
"""
