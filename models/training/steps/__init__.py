"""One optimiser step: its rows, the losses of its packs, a critic beside the policy."""
