"""Gradus: a workflow-orchestrated pipeline for reinforcement learning with verifiable rewards.

    import gradus
    run = gradus.train("demo", rounds=2)
    run.evaluations().to_pandas()

Each name below is imported when it is first asked for, and Prefect and torch when something is computed. A stage of an
installed package is a name, too.
"""

_HOMES = {
    "data.errors": ("GradusError",),
    "flows.library.calling": ("progress",),
    "flows.library.exchange_calls": ("export", "import_rollouts"),
    "flows.library.results": ("Artifact", "Run", "run", "runs", "sql"),
    "flows.library.run_calls": (
        *("agree", "amend", "bisect", "compare", "dry_compare", "dry_prune", "dry_rerun", "dry_restore", "dry_run"),
        *("lab", "plan_comparison", "prune", "rerun", "restore", "train"),
    ),
    "flows.library.stage_calls": (
        *("curate", "evaluate", "hint", "ingest", "profile", "rollout", "score", "update", "warmstart"),
    ),
}
"""The module of each name."""
_OFFERED = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Return a name that this package offers, from its module, or the call of a stage of an installed package."""
    from importlib import import_module, metadata  # noqa: PLC0415 - for those alone who ask for something

    if name in _OFFERED:
        found: object = getattr(import_module(_OFFERED[name]), name)
    elif metadata.entry_points(group="gradus.stages", name=name):
        found = import_module(_OFFERED["ingest"]).__getattr__(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the names that this package offers beside its own."""
    return sorted({*globals(), *_OFFERED})
