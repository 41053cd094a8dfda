"""`gradus browse`: a run in the terminal, by Textual."""
