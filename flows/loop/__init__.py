"""The training loop: which stage follows which, what a run starts from, and what it would compute."""
