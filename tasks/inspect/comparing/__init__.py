"""Methods side by side: what several trainings gained, at what cost, and whether that is a difference."""
