"""Ready-made texts in rows of a plan: tokenised behind their prompts; a row whose text does not fit is left out.

They become rollouts of the origin that the plan names, with an end token and without the log-probs of a sampler.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gradus.data.arrays import nulls, positions
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import OWN_GOLD, PLAN, ROLLOUTS
from gradus.data.records import Json
from gradus.data.sources.reading import Refused
from gradus.models.policy import PromptSide, completion_texts
from gradus.models.templates import PromptStyle
from gradus.models.training.warmstart import Example, example_of
from gradus.tasks.stages.rollout.groups import TRAINED
from gradus.tasks.stages.rollout.parents import in_order
from gradus.tasks.stages.rollout.prompts import Row, refuse_empty, tokenised_prompts

TOO_LONG = "longer than the policy's context"
_OF_PLAN = ("problem_id", "group_id", "hint_level", "hint_text", "origin")
_SPARSE = ("plan_id", "wave", "call", "messages", "role", "use", "about", OWN_GOLD, "source", TRAINED)


@dataclass(frozen=True)
class Given:
    """The given texts of a plan."""

    plan: pa.Table
    """The plan without the rows whose text does not fit."""
    texts: Mapping[str, Example]
    """The prompt and the text of each row, as tokens, by the row's name."""
    refused: Refused
    side: PromptSide | None

    @property
    def counts(self) -> Mapping[str, Json]:
        """The tokens of the texts, and the rows that are left out by reason; nothing of a plan without any."""
        found: dict[str, Json] = {}
        if self.texts:
            found["given_tokens"] = sum(len(each.completion) for each in self.texts.values())
        if self.refused.reasons:
            found |= {"refused": dict(self.refused.reasons), "examples": [*self.refused.examples]}
        return found

    def rollouts(self, rows: Sequence[tuple[Row, str]], round_: int) -> pa.Table:
        """Return rows of the plan with their rollout ids as rollouts; no rows without a given text."""
        if not rows or self.side is None:
            return ROLLOUTS.arrow.empty_table()
        found = [self.texts[_name(row)] for row, _ in rows]
        made: dict[str, Sequence[object]] = {
            "rollout_id": [rollout_id for _, rollout_id in rows],
            "sample": [0] * len(rows),
            "round": [round_] * len(rows),
            "completion": completion_texts(self.side.tokenizer, [each.completion for each in found]),
            "prompt_tokens": [each.prompt for each in found],
            "completion_tokens": [each.completion for each in found],
            "finish_reason": ["stop"] * len(rows),
            **{name: [row[name] for row, _ in rows] for name in (*_OF_PLAN, *_SPARSE)},
        }
        sparse = [name for name in _SPARSE if any(value is not None for value in made[name])]
        names = dict.fromkeys((*ROLLOUTS.arrow.names, *sparse))
        columns = {name: pa.array(made.get(name, [None] * len(rows)), ROLLOUTS.type_of(name)) for name in names}
        return in_order(pa.table(columns))


def given_texts(plan: pa.Table, problems: pa.Table, side: PromptSide | None, style: PromptStyle) -> Given:
    """Return the ready-made texts of plan rows; BadInputError if one cannot become tokens, or has no prompt."""
    wanted, refused = np.flatnonzero(~nulls(PLAN.column(plan, "given"))), Refused()
    if not len(wanted):
        return Given(plan, {}, refused, side)
    if side is None:
        raise BadInputError(
            "the plan is given texts, and the engine has no tokens of the policy to learn them by",
            hint="sample with an engine that returns tokens (server.tokens = true)",
        )
    rows = _with_problems(plan.take(pa.array(wanted)), problems)
    kept, texts = np.ones(plan.num_rows, dtype=np.bool_), dict[str, Example]()
    for at, (row, _), prompt in zip(wanted, rows, tokenised_prompts(rows, side, style), strict=True):
        example = example_of(side, prompt, row["given"])
        if example is None:
            kept[at] = False
            refused.add(TOO_LONG, f"problem {row['problem_id']}")
        else:
            texts[_name(row)] = example
    return Given(plan.filter(pa.array(kept)), texts, refused, side)


def _with_problems(plan: pa.Table, problems: pa.Table) -> list[tuple[Row, Row]]:
    """Return rows of a plan, missing columns null, with their problems; BadInputError for an unknown problem."""
    places = positions(plan.column("problem_id"), problems.column("problem_id"))
    if (places < 0).any():
        name = plan.column("problem_id")[int(np.argmax(places < 0))].as_py()
        raise BadInputError(f"the plan names problem {name}, which --problems does not have")
    empty = dict.fromkeys(PLAN.names)
    rows = list(zip(plan.to_pylist(), problems.take(pa.array(places)).to_pylist(), strict=True))
    for row, problem in rows:
        if not row.get("messages"):
            refuse_empty(problem)
    return [({**empty, **row}, problem) for row, problem in rows]


def _name(row: Row) -> str:
    return row["plan_id"] or row["group_id"]
