"""Hints that the source itself gives, from knowledge to solution (Scaf-GRPO, arXiv 2510.19807)."""

import json

from gradus.components import component
from gradus.data.hints.leaks import leaks
from gradus.data.records import Problem


@component("hint", paper="arXiv 2510.19807", version=2, shown="Hints, from what is needed to how it is solved:")
def tiers(problem: Problem, fraction: float) -> str | None:
    """The first share of the source's hint parts, lowest tier first; parts from the first leaking one on are left out.

    Parts are read from `extra`: {"tiers": [[part, ...], ...]}.
    """
    extra = json.loads(problem["extra"] or "{}")
    parts = [part for tier in extra.get("tiers", []) for part in tier if part.strip()]
    answer = problem["answer"]
    if not parts or answer is None:
        return None
    shown: list[str] = []
    for part in parts[: max(1, round(fraction * len(parts)))]:
        if leaks(part, answer, problem["question"] or ""):
            break
        shown.append(part.strip())
    return "\n".join(shown) + "\n" if shown else None
