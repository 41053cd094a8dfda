"""Advantages of single tokens: by the tokens that answers of a group share, by the turns of an agent."""
