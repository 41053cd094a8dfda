"""How a stage is run: its adapter, its process, its supervision."""
