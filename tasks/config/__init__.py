"""Settings: one model per stage, and where Gradus keeps its files."""
