"""Advantages of single tokens: by the tokens that answers of a group share, by turns of an agent, by list items."""
