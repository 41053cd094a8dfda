"""Stage rollout: a plan and a policy become rollouts, by one engine or several Ray workers."""
