"""Gradus: a workflow-orchestrated pipeline for reinforcement learning with verifiable rewards.

    import gradus
    run = gradus.train("demo", rounds=2)
    run.evaluations().to_pandas()

Each name below is imported when it is first asked for, and Prefect and torch when something is computed.
"""

_HOMES = {
    "data.errors": ("GradusError",),
    "flows.library.calling": ("progress",),
    "flows.library.compare_calls": ("compare", "dry_compare", "plan_comparison"),
    "flows.library.exchange_calls": ("export", "import_rollouts"),
    "flows.library.results": ("Artifact", "Run", "run", "runs", "sql"),
    "flows.library.run_calls": (
        *("dry_prune", "dry_rerun", "dry_restore", "dry_run", "prune", "rerun", "restore", "train"),
    ),
    "flows.library.stage_calls": (
        *("curate", "evaluate", "hint", "ingest", "profile", "rollout", "score", "update", "warmstart"),
    ),
}
"""The module of each name."""
_OFFERED = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Return a name that this package offers, from its module."""
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - as cheap as an import can be for those who ask for nothing

    found: object = getattr(import_module(_OFFERED[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the names that this package offers beside its own."""
    return sorted({*globals(), *_OFFERED})
