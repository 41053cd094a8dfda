"""Rollouts and checkpoints on their way out to other systems, and their rollouts on the way in."""
