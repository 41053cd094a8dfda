"""The economy of help in a round: problems that are solved with help alone, and accuracy with and without it."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from gradus.data.arrays import bools, ints, nulls, runs, totals
from gradus.data.lake.tally import BARE, HELPED


@dataclass(frozen=True)
class EffectOfHelp:
    """The effect of help on the problems of a round that were asked with it and without.

    Help is a hint, or a prompt of a wave's. Given texts, continued rollouts and those taken up again count neither way,
    nor do rollouts without a verdict, and explanations of an answer that the prompt states. A rescued problem is one
    that is solved with help and never without. Tokens of help are those that prompts with help have beyond the
    problem's own, summed over rollouts; None if a prompt has no tokens.
    """

    num_problems: int = 0
    num_rescued: int = 0
    helped: int = 0
    """Rollouts with help."""
    helped_right: int = 0
    bare: int = 0
    bare_right: int = 0
    tokens: float | None = 0.0

    def with_rows(self, rows: pa.Table) -> Self:
        """Return the effect on these problems and on further ones, whole, rows of a tally."""
        kind, judged = ints(rows.column("kind")), ~nulls(rows.column("correct"))
        if not (kind == HELPED).any():
            return self
        problem, ids = runs(rows.column("problem_id"))
        right, numbers = bools(rows.column("correct")), (ints(rows.column(x)) for x in ("n", "tokens", "num_counted"))
        n, tokens, num_counted = numbers
        chosen = [judged & (kind == each) for each in (HELPED, BARE)]
        asked, solved, length = (
            [totals(problem, where & some, values, len(ids)) for where in chosen]
            for some, values in ((judged, n), (right, n), (judged, tokens))
        )
        both = (asked[0] > 0) & (asked[1] > 0)
        counted = (num_counted == n)[(chosen[0] | chosen[1]) & both[problem]].all()
        added = (length[0] - asked[0] * length[1] / np.maximum(asked[1], 1))[both].sum()
        return type(self)(
            num_problems=self.num_problems + int(both.sum()),
            num_rescued=self.num_rescued + int((both & (solved[0] > 0) & (solved[1] == 0)).sum()),
            helped=self.helped + int(asked[0][both].sum()),
            helped_right=self.helped_right + int(solved[0][both].sum()),
            bare=self.bare + int(asked[1][both].sum()),
            bare_right=self.bare_right + int(solved[1][both].sum()),
            tokens=self.tokens + float(added) if counted and self.tokens is not None else None,
        )

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics; none if no problem was asked both ways."""
        if not self.num_problems:
            return {}
        return {
            **({} if self.tokens is None else {"data/help_tokens": self.tokens}),
            "data/rescued_problems": float(self.num_rescued),
            "data/helped_accuracy": self.helped_right / self.helped,
            "data/unhelped_accuracy": self.bare_right / self.bare,
        }
