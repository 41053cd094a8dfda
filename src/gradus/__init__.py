"""Gradus: a workflow-orchestrated pipeline for reinforcement learning with verifiable rewards."""
