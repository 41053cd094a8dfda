"""Objective of an update: advantages, losses, importance weights, and the batches they are functions of."""
