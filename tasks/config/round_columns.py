"""The columns of each table of a round that its components read."""

from collections.abc import Collection, Mapping, Sequence

from gradus.data.curation.uses import split_need
from gradus.data.lake.schema import (
    LENGTH,
    MARKS,
    OF_MARKS,
    OF_PARTS,
    OF_PLAN,
    OF_PROBLEM,
    PLACES,
    PLAN,
    PROBLEMS,
    ROLLOUTS,
    SCORES,
    TableSchema,
)

_TOKENS = ("prompt_tokens", "completion_tokens", "logprobs", "spans", "trained_prompt_tokens")
"""Columns that are read only for a component that declares them."""
_ALWAYS = {
    "rollouts": ("rollout_id", "problem_id", "group_id", "hint_level", "hint_text", "plan_id", "wave", "call", "use"),
    "scores": ("rollout_id",),
    "problems": ("problem_id", "question", "messages"),
    "plan": ("problem_id", "group_id", "hint_level", "plan_id", "shown"),
}


def round_columns(
    needs: Collection[str] | None,
    curated: Sequence[Collection[str] | None] = (),
    keys: Collection[str] = (),
) -> dict[str, tuple[str, ...]]:
    """Return the columns that are read of rollouts, scores, problems and plan; None needs all but tokens.

    `curated` are the needs of filters, ranking and sampler that it draws further problems by, `keys` the key columns
    of trackers. A need of rows of another use is read with those of the rows that are learned from: they stand in the
    same tables.
    """
    needs = None if needs is None else [split_need(need)[1] for need in needs]
    named = (*(needs or ()), *keys)
    places = [name for name in PLACES if name in named]
    tokens = {LENGTH: "completion_tokens"} if LENGTH in named else {}
    tokens |= {"completion": "completion", "tokens": "completion_tokens"} if places else {}
    problems = [*named, *(need for each in curated for need in each or ())]
    everything = None in (needs, *curated)
    return {
        "rollouts": (
            *_columns(ROLLOUTS, needs, {**{name: name for name in named}, **tokens}, but=_TOKENS),
            *places,
        ),
        "scores": _columns(SCORES, needs, {n: _of_score(n) for n in named}),
        "problems": _columns(PROBLEMS, None if everything else problems, {n: of_problem(n) for n in problems}),
        "plan": _columns(PLAN, needs, {n: n.removeprefix(OF_PLAN) for n in named if n.startswith(OF_PLAN)}),
    }


def tracked_columns(tracked: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the columns that are read of the role trackers: these, and their key columns; nothing if there are none.

    Key columns are by NAME.COLUMN.
    """
    keys = (key for by in tracked.values() for key in by)
    return {"trackers": tuple(dict.fromkeys((*keys, *tracked)))} if tracked else {}


def _columns(
    table: TableSchema, needs: Collection[str] | None, named: Mapping[str, str], but: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the columns of a table that are read: those named, all but a few if nothing is declared."""
    known = [column.name for column in table.columns]
    asked = set(known) - set(but) if needs is None else set(named.values())
    carried = [name for name in named.values() if table is PLAN and name not in known]
    return (*(name for name in known if name in asked or name in _ALWAYS[table.name]), *carried)


def _of_score(need: str) -> str:
    """Return the column of scores that a need is read from."""
    return "components" if need.startswith(OF_PARTS) else MARKS if need.startswith(OF_MARKS) else need


def of_problem(need: str) -> str:
    """Return the column of problems that a need is read from."""
    name = need.removeprefix(OF_PROBLEM)
    return name if need == name or name in PROBLEMS.names else "extra"
