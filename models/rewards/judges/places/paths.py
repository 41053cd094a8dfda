"""Rewards of graphs and sequences: `graph_f1`, `dtw`, `action_prefix`."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, unparsed
from gradus.models.rewards.judges.exact import normalise
from gradus.models.rewards.structured import is_number, known, stated

_MAX_STEPS = 1000


@component("reward", name="graph_f1", paper="arXiv 2504.13617", columns=("graph", "extra"))
def judge_graph_f1(row: Row, gold: str, max_chars: int) -> Verdict:
    """Mean of two F1: of the nodes of a scene graph, and of its edges [subject, relation, object].

    R1-SGG (arXiv 2504.13617): R = R_node + R_edge. A graph is {"nodes": [...], "edges": [[...], ...]}; the gold is
    `graph` (a column, or in `extra`), or the answer as JSON. Names are compared as `exact` does. If neither has edges,
    the nodes alone count. Between 0 and 1 it is no verdict. Deviation: nodes have no boxes; use `boxes` for these.

    Args:
        row: The completion.
        gold: The graph, if the row has none.
        max_chars: Longer completions are judged by their last characters.
    """
    wanted, found = _graph(known(row, gold, "graph")), _graph(stated(row, max_chars))
    if wanted is None or not wanted[0]:
        return failed('the row has no graph: {"nodes": [...], "edges": [[subject, relation, object], ...]}')
    if found is None:
        return unparsed()
    nodes, edges = (f1(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))
    return Verdict((nodes + edges) / 2 if wanted[1] or found[1] else nodes)


def f1(found: set[Any], wanted: set[Any]) -> float:
    """Return 2 |both| / (|found| + |wanted|); 1 if both are empty."""
    return 2 * len(found & wanted) / (len(found) + len(wanted)) if found or wanted else 1.0


@component("reward", name="dtw", paper="arXiv 2509.21113", columns=("states", "extra"))
def judge_dtw(row: Row, gold: str, max_chars: int) -> Verdict:
    """R = exp(-d / n), d the dynamic time warping of the stated states to the n gold ones.

    MOSS-ChatV (arXiv 2509.21113), a reward of the process that falls with the distance; the map is guessed. States are
    a list of numbers, whose distance is |a - b|, or of texts, 0 if `exact` takes them for the same and 1 if not. d is
    the least sum of distances over all ways to walk both lists from the first to the last, one step in either or both
    at a time. The gold is `states` (a column, or in `extra`), or the answer as JSON. Below 1 it is no verdict.

    Args:
        row: The completion, a JSON list of states.
        gold: The states, if the row has none.
        max_chars: Longer completions are judged by their last characters.
    """
    wanted, found = known(row, gold, "states"), stated(row, max_chars)
    if not _are_states(wanted):
        return failed("the row has no states: a list of numbers or of texts")
    if not _are_states(found) or is_number(found[0]) != is_number(wanted[0]):
        return unparsed()
    return Verdict(math.exp(-warped(found, wanted) / len(wanted)))


def warped(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Return the distance of two sequences of numbers or texts by dynamic time warping."""
    row = [0.0, *[math.inf] * len(other)]
    for first in one:
        before, row = row, [math.inf]
        for at, second in enumerate(other):
            row.append(_distance(first, second) + min(before[at], before[at + 1], row[at]))
    return row[-1]


def _distance(one: Any, other: Any) -> float:
    return abs(one - other) if is_number(one) else float(normalise(one) != normalise(other))


@component(
    "reward", name="action_prefix", paper="Reinforced Reasoning for Embodied Planning", columns=("actions", "extra")
)
def judge_action_prefix(row: Row, gold: str, max_chars: int) -> Verdict:
    """R = p / max(n, m), p of the n gold actions are right from the first one on, m are stated.

    "Reinforced Reasoning for Embodied Planning": an action is worth nothing behind a wrong one. Actions are a JSON list
    of texts; the gold is `actions` (a column, or in `extra`), or the answer as JSON. Between 0 and 1 it is no verdict.
    Deviation: actions beyond the gold's lower the value.

    Args:
        row: The completion.
        gold: The actions, if the row has none.
        max_chars: Longer completions are judged by their last characters.
    """
    wanted, found = _texts(known(row, gold, "actions")), _texts(stated(row, max_chars))
    if not wanted:
        return failed("the row has no actions: a list of texts")
    if found is None:
        return unparsed()
    value = prefix(found, wanted) / max(len(wanted), len(found))
    return Verdict(value, extracted=", ".join(found)[:1000])


def prefix(found: Sequence[Hashable], wanted: Sequence[Hashable]) -> int:
    """Return the length of the common beginning."""
    return next(
        (at for at, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted))
    )


def _texts(value: Any) -> list[str] | None:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return None
    return [normalise(each) for each in value]


def _graph(value: Any) -> tuple[set[str], set[tuple[str, ...]]] | None:
    if not isinstance(value, dict):
        return None
    nodes, edges = _texts(value.get("nodes", [])), value.get("edges", [])
    if nodes is None or not isinstance(edges, list):
        return None
    triplets = [_texts(edge) for edge in edges]
    known_edges = {tuple(each) for each in triplets if each is not None and len(each) == 3}
    return (set(nodes), known_edges) if all(each is not None and len(each) == 3 for each in triplets) else None


def _are_states(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= _MAX_STEPS
        and (all(map(_is_small, value)) or all(isinstance(each, str) for each in value))
    )


def _is_small(value: Any) -> bool:
    return is_number(value) and abs(value) <= 1e9
