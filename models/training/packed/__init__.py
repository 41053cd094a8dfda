"""Forward passes over rows of different lengths: packs, attention that shares prompts, log-probs of tokens."""
