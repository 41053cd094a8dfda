"""How a policy acts, is judged and learns."""
