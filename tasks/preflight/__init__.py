"""Checks before a server, a worker or the first stage starts."""
