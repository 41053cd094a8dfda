"""Rollouts as other systems write them: a table of what their fields mean, read one way and written the other."""
