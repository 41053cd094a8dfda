"""The columns that a part of an objective can read, by name; torch is not imported.

A name is a column of the rows, or ROLE.QUANTITY: what a model says of each completion token. N rows in an update, M
completion tokens, K most likely tokens of a teacher.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gradus.components.description import Component

Place = Literal["update", "step", "pack"]
"""Frequency of a part: once for all rows of an update, once for those of a step, or in each pack of rows."""


@dataclass(frozen=True)
class Column:
    """A column: its axis, what it is, the places that have it, and whether it is computed only if a part needs it."""

    axis: Literal["row", "token", "vocabulary"]
    doc: str
    places: tuple[Place, ...] = ("update", "step", "pack")
    on_demand: bool = False


_LATER: tuple[Place, ...] = ("step", "pack")

COLUMNS: Mapping[str, Column] = {
    "reward": Column("row", "float64; NaN where judging failed"),
    "correct": Column("row", "float64: 1 right, 0 wrong, NaN unknown"),
    "group": Column("row", "int64: rows that are compared have one number"),
    "length": Column("row", "int64: completion tokens"),
    "origin": Column("row", "who wrote the row, as text; own is the policy"),
    "tokens": Column("token", "int64: the id of the token; -1 in a completion without ids"),
    "credit": Column("token", "float64: what a shape of the update gave the token; 0 where it gave nothing"),
    "advantage": Column("token", "the advantage of the token in its term", _LATER),
    "sampler.logp": Column("token", "nats, as the sampler recorded it", _LATER),
    "old.logp": Column("token", "nats: the policy's own, by the trainer, when the update began", _LATER),
    "now.logp": Column("token", "nats: the policy's; in a loss with gradient, before it measured for the step", _LATER),
    "now.entropy": Column("token", "nats: entropy of the policy; in a loss with gradient", _LATER, on_demand=True),
    "now.mean_logp": Column("token", "mean log-prob of the vocabulary, with gradient", ("pack",), on_demand=True),
    "now.logsumexp": Column(
        "token", "of the logits at the row's temperature, with gradient", ("pack",), on_demand=True
    ),
    "now.logp_at_1": Column("token", "the log-prob at temperature 1, with gradient", ("pack",), on_demand=True),
    "now.head_gradient": Column(
        "token", "squared norm of the gradient of its log-prob in the weights of the head", ("step",), on_demand=True
    ),
    "now.head_curvature": Column(
        "token", "the Fisher information of the head's weights along that gradient", ("step",), on_demand=True
    ),
    "now.top": Column(
        "vocabulary", "the policy's log-probs of the teacher's K tokens, with gradient", ("pack",), on_demand=True
    ),
    "teacher.top": Column(
        "vocabulary", "log-probs of the K tokens most likely to the teacher, under it", ("pack",), on_demand=True
    ),
    "teacher.logp": Column("token", "nats: the teacher's", _LATER, on_demand=True),
    "reference.logp": Column("token", "nats: the reference policy's", _LATER, on_demand=True),
    "reference.mean_logp": Column("token", "mean log-prob of the vocabulary under it", ("pack",), on_demand=True),
    "critic.value": Column("token", "the critic's estimate before the token, when the update began", ("step",), True),
}


def place_of(component: Component) -> Place:
    """Return where a part of an objective is computed."""
    if component.kind == "advantage":
        return component.when
    return "pack" if component.kind in ("loss", "correction") else "step"


def columns_of(component: Component) -> frozenset[str]:
    """Return the columns that a part may read: those that it declares, or all that nothing is computed for."""
    if component.needs is not None:
        return frozenset(component.needs)
    place = place_of(component)
    measured = {"now.logp", "old.logp"} if place == "step" else set[str]()
    own = {"advantage"} if component.kind == "advantage" else set[str]()
    return frozenset(
        name
        for name, column in COLUMNS.items()
        if place in column.places and not column.on_demand and name not in measured | own
    )
