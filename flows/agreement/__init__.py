"""`gradus agree`: rewards on the same stored rollouts, without a token sampled."""
