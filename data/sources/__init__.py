"""Sources of problems: files, Hugging Face datasets, reasoning-gym families; each format read row by row."""
