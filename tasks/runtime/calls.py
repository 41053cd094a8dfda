"""One call of a stage: its settings, its identity and its outcome. Does not import Prefect.

job = planned(store, Call("score", config, {"rollouts": [ref]}, round=3), run="tiny-1", seed=0)
store.find(Ref.parse(job.output))      # the artifact, if the call was computed before
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast
from uuid import UUID

from gradus.components.settings import Config
from gradus.data.lake.manifest import identity_digest
from gradus.data.lake.store import Ref, Store
from gradus.data.records import Json
from gradus.tasks.identity.pins import code_identity
from gradus.tasks.runs.records import Evaluation, Report, Summary
from gradus.tasks.runtime.attempt import Job
from gradus.tasks.stages.registry import stage_spec

Inputs = Mapping[str, Sequence[Ref]]
ContentKey = Callable[[Ref, Sequence[str] | None], str]


@dataclass(frozen=True)
class Call:
    """One stage of a run: its settings, its inputs, its round and what it is for (train, escalate1, profile, eval).

    The purpose tells the stages of one round apart.
    """

    name: str
    config: Config
    inputs: Inputs
    round: int = 0
    purpose: str = "train"
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Facts decided by the run: a round in its rows, a source, a suite's name. Unless the stage declares them
    incidental, the result depends on them."""
    seed: int | None = None
    """Seed of what the stage draws, part of its identity if it draws; None is the run's own."""

    @property
    def label(self) -> str:
        """The name of the call in a run: purpose if it is not training, stage, round."""
        return label(self.name, self.round, self.purpose)

    @property
    def key(self) -> tuple[str, int, str]:
        """The key of the call within its run: stage, round, purpose."""
        return self.name, self.round, self.purpose


@dataclass(frozen=True)
class Outcome:
    """Outcome of a stage: its artifact, whether it was reused, the seconds spent and its report."""

    stage: str
    purpose: str
    round: int
    ref: Ref
    reused: bool
    seconds: float
    report: Report
    task_run: UUID | None = None
    """The stage's task run in Prefect."""

    @property
    def summary(self) -> Summary:
        """The counts that the stage reported."""
        return self.report.get("summary", {})

    @property
    def evaluation(self) -> Evaluation:
        """The same of the stage `evaluate`, with its figures."""
        return cast("Evaluation", self.summary)

    @property
    def label(self) -> str:
        """Name of the call in the progress display."""
        return label(self.stage, self.round, self.purpose)


class Stages(Protocol):
    """Runner of the stages of a training, or forecaster of what running them would compute."""

    @property
    def store(self) -> Store:
        """The store of the artifacts."""
        ...

    def stage(self, call: Call) -> Outcome:
        """Return the outcome of one stage."""
        ...

    def halt(self) -> None:
        """End what other threads have under way."""
        ...

    def say(self, text: str) -> None:
        """Show a sentence at the terminal."""
        ...

    def make_room(self, made: Mapping[int, Ref], weights: set[int], states: set[int]) -> None:
        """Let the checkpoints of other rounds than these lose their weights, and their train states."""
        ...


def label(stage: str, round_: int, purpose: str) -> str:
    """Return the name of a call in a run."""
    return "-".join([*([] if purpose == "train" else [purpose]), stage, str(round_)])


def planned(
    store: Store, call: Call, *, run: str, seed: int, forced: bool = False, content_key: ContentKey | None = None
) -> Job:
    """Return the job of a call; its output is named by everything that its result depends on.

    Inputs count by their content, so that one that was computed anew and came out as before changes no name.
    `seed` is the run's own. `content_key` replaces the store's for inputs that are not in the store.
    """
    spec, key_of = stage_spec(call.name), content_key or store.content_key
    seed = seed if call.seed is None else call.seed
    reads = spec.reads(call.config)
    given = {role: refs for role, refs in sorted(call.inputs.items()) if refs}
    identity: dict[str, Json] = {
        "stage": spec.name,
        "version": spec.version,
        "code": code_identity(call.config, spec.distribution),
        "config": call.config.identified(),
        "parents": {role: [key_of(ref, reads.get(role)) for ref in refs] for role, refs in given.items()},
    }
    if facts := {name: fact for name, fact in call.facts.items() if name not in spec.incidental}:
        identity["facts"] = facts
    if spec.draws:
        identity["seed"] = seed
    if reads and store.find(Ref(spec.makes, identity_digest(identity))) is None:
        # Before a stage named its columns, every byte of an input counted: what was computed then is found by its name.
        whole = {**identity, "parents": {role: [key_of(ref, None) for ref in refs] for role, refs in given.items()}}
        identity = whole if store.find(Ref(spec.makes, identity_digest(whole))) is not None else identity
    return Job(
        stage=spec.name,
        lake=str(store.root),
        output=str(Ref(spec.makes, identity_digest(identity))),
        inputs={role: [str(ref) for ref in refs] for role, refs in given.items()},
        config=call.config.model_dump(mode="json"),
        facts=call.facts,
        seed=seed,
        identity=identity,
        run=run,
        forced=forced,
    )
