# What type checkers see of the names that __init__.py imports when they are asked for.
from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

from gradus.data.errors import GradusError as GradusError
from gradus.flows.library.calling import progress as progress
from gradus.flows.library.exchange_calls import export as export
from gradus.flows.library.exchange_calls import import_rollouts as import_rollouts
from gradus.flows.library.results import Artifact as Artifact
from gradus.flows.library.results import Run as Run
from gradus.flows.library.results import run as run
from gradus.flows.library.results import runs as runs
from gradus.flows.library.results import sql as sql
from gradus.flows.library.run_calls import agree as agree
from gradus.flows.library.run_calls import amend as amend
from gradus.flows.library.run_calls import bisect as bisect
from gradus.flows.library.run_calls import compare as compare
from gradus.flows.library.run_calls import dry_compare as dry_compare
from gradus.flows.library.run_calls import dry_prune as dry_prune
from gradus.flows.library.run_calls import dry_rerun as dry_rerun
from gradus.flows.library.run_calls import dry_restore as dry_restore
from gradus.flows.library.run_calls import dry_run as dry_run
from gradus.flows.library.run_calls import lab as lab
from gradus.flows.library.run_calls import plan_comparison as plan_comparison
from gradus.flows.library.run_calls import prune as prune
from gradus.flows.library.run_calls import rerun as rerun
from gradus.flows.library.run_calls import restore as restore
from gradus.flows.library.run_calls import train as train
from gradus.flows.library.texts import Component
from gradus.flows.parameters import Input
from gradus.flows.recipe.assignments import Assignments

class _Given(TypedDict, total=False):
    set: Assignments | None
    out: Input | None

class _Drawn(_Given, total=False):
    seed: int

class _Sampled(_Drawn, total=False):
    policy: Input
    samples: int
    temperature: float
    max_tokens: int
    engine: str
    device: str
    rewards: Sequence[Component] | None

def ingest(
    source: Input,
    *,
    columns: Mapping[str, str] | None = None,
    strict: bool = False,
    policy: Input | None = None,
    **given: Unpack[_Given],
) -> Artifact: ...
def hint(problems: Input, **given: Unpack[_Given]) -> Artifact: ...
def curate(
    problems: Input,
    *,
    difficulty: Input | None = None,
    hints: Input | None = None,
    filters: Sequence[Component] | None = None,
    rank: Component = "",
    top: int = 0,
    sampler: Component = "all",
    draw: int = 0,
    hint_level: int = 0,
    policy: Input | None = None,
    evaluated: Input | Sequence[Input] | None = None,
    **given: Unpack[_Drawn],
) -> Artifact: ...
def rollout(
    plan: Input,
    problems: Input,
    *,
    policy: Input = "bundled",
    parents: Input | Sequence[Input] | None = None,
    engine: str = "transformers",
    **given: Unpack[_Drawn],
) -> Artifact: ...
def score(
    rollouts: Input,
    *,
    rewards: Sequence[Component] | None = None,
    problems: Input | None = None,
    columns: Mapping[str, str] | None = None,
    **given: Unpack[_Given],
) -> Artifact: ...
def update(
    rollouts: Input | Sequence[Input],
    scores: Input | Sequence[Input],
    *,
    policy: Input = "bundled",
    reference: Input | None = None,
    batch: Input | None = None,
    teacher: Input | None = None,
    teachers: Input | Sequence[Input] | None = None,
    **given: Unpack[_Drawn],
) -> Artifact: ...
def warmstart(problems: Input, *, policy: Input | None = None, **given: Unpack[_Drawn]) -> Artifact: ...
def profile(problems: Input, **given: Unpack[_Sampled]) -> Artifact: ...
def evaluate(problems: Input, *, against: Input | None = None, **given: Unpack[_Sampled]) -> Artifact: ...
