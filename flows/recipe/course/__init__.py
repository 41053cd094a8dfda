"""The course of a training: what its rounds recorded, and the numbers and settings of a round that follow from it."""
