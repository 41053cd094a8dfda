"""Stage score: rollouts become scores, judged in disposable processes."""
