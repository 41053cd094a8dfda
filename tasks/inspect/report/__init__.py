"""`gradus report`: what a run did as one HTML page that loads nothing and runs nothing, and its pictures as PNG."""
