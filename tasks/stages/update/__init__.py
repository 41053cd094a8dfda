"""Stage update: scored rollouts and their policy become the next policy."""
