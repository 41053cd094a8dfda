"""What runs did: their journals, and what is derived from them."""
