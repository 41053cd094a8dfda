"""Queries: SQL over the lake, components and settings, reasons, the state of this machine."""
