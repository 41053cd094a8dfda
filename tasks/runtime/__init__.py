"""Execution of a stage: its adapter, its process, its supervision."""
