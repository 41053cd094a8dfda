"""Verdicts on pairs of methods: better, worse, equivalent or undecided, at the level of all pairs together.

A difference is shown if 0 can be rejected, equivalence if a difference of the margin or more can be (two one-sided
tests, TOST); each by p values that are adjusted for the number of pairs (Holm). A difference that is shown and lies
within the margin is an equivalence: the margin says what matters. Nothing is called equivalent at a margin below the
smallest detectable difference.
"""

from collections.abc import Sequence

import numpy as np

from gradus.data.arrays import Floats
from gradus.data.intervals import LEVEL, detectable, holm, mean_of
from gradus.tasks.inspect.comparing.figures import Judged, Verdict


def judge_pairs(pairs: Sequence[tuple[str, str, Floats]], margin: float, planned: float | None = None) -> list[Judged]:
    """Judge pairs (method, than, (S, P) differences of pass rates); `planned` is the difference planned to detect.

    Without a measured plan, each pair's own smallest detectable difference decides what may be called equivalent.
    """
    if not pairs:
        return []
    means = [mean_of(values) for _, _, values in pairs]
    different = holm(np.array([mean.p_different() for mean in means])).tolist()
    equivalent = holm(np.array([mean.p_equivalent(margin) for mean in means])).tolist()
    found: list[Judged] = []
    for (method, than, values), mean, p, q in zip(pairs, means, different, equivalent, strict=True):
        least = detectable(mean.error, mean.freedom, LEVEL / len(pairs))
        verdict: Verdict = "undecided"
        if q <= LEVEL and margin >= (least if planned is None else planned):
            verdict = "equivalent"
        elif p <= LEVEL:
            verdict = "better" if mean.value > 0 else "worse"
        found.append(
            {
                "method": method,
                "than": than,
                "difference": mean.interval(),
                "by_seed": values.mean(axis=1).tolist(),
                "p_different": p,
                "p_equivalent": q,
                "detectable": least,
                "verdict": verdict,
            }
        )
    return found


def too_narrow(found: Sequence[Judged], margin: float, planned: float | None = None) -> list[str]:
    """Remark on a margin at which nothing can be called equivalent."""
    least = [planned] if planned is not None else [each["detectable"] for each in found]
    if not least or margin >= max(least):
        return []
    where = "the plan" if planned is not None else "these data" if margin < min(least) else "some pairs"
    text = f"the smallest detectable difference of {where} is {100 * max(least):.1f} points"
    return [f"{text}, above the margin of {100 * margin:g}: `equivalent` cannot be concluded there"]
