"""The response surface: the chance that a policy solves a problem with a share of its hint, and what that is worth."""
