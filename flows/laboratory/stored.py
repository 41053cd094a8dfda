"""Stored rounds of a run, as its journal and the lake have them: what its updates learned from, and what came after."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gradus.data.curation.uses import LEARN, POLICY
from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import is_skipped
from gradus.flows.loop.reruns import stored_recipe
from gradus.flows.loop.round.outcomes import Sampled
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.past import Figures, Past
from gradus.tasks.runs.history import Key, is_learned, last_outputs, sampled_tokens
from gradus.tasks.runs.records import Summary
from gradus.tasks.stages.context import read_report

_UPDATE = ("update", "train")
Tables = Mapping[str, list[Ref]]


@dataclass(frozen=True)
class StoredRound:
    """A round that was learned from."""

    index: int
    policies: Sequence[Ref]
    """The one that sampled, and those after this round's update and after those behind it, as far as weights are there.

    The place of a policy is the age that the rows have for it.
    """
    problems: Ref
    plans: list[Ref]
    made: Sequence[Sampled]
    """Rollouts and scores of all roles and uses."""
    held_out: Tables
    """Rollouts and scores of other problems by the same policy, or by the next: held_rollouts, held_scores."""
    roles: Mapping[str, Ref]
    """The models of roles that earlier rounds trained, by name."""


@dataclass(frozen=True)
class StoredRun:
    """The rounds of a run in the order of their numbers."""

    store: Store
    folder: Path

    @cached_property
    def recipe(self) -> Recipe:
        """Its recipe."""
        return stored_recipe(self.folder.parent, self.folder.name)

    @cached_property
    def calls(self) -> Mapping[Key, Ref]:
        """The last artifact of each finished call."""
        found = {call: Ref.parse(output) for call, output in last_outputs(self.folder).items()}
        return {call: ref for call, ref in found.items() if self.store.find(ref) is not None}

    @cached_property
    def _updates(self) -> dict[int, Ref]:
        """The checkpoints of its updates by round, in order."""
        found = {index: ref for (stage, index, purpose), ref in self.calls.items() if (stage, purpose) == _UPDATE}
        return dict(sorted(found.items()))

    @cached_property
    def past(self) -> Past:
        """Tokens and optimiser steps of its rounds, which schedules follow; metrics are left out."""
        return Past(rounds=tuple(map(self._figures, range(1, max(self._updates, default=0) + 1))))

    def rounds(self, most: int) -> list[StoredRound]:
        """Return at most `most` rounds whose policy's weights are there, spread evenly; UsageError without any."""
        there = [index for index in self._updates if self._is_whole(self._policy(index))]
        if not there:
            raise UsageError(
                f"run {self.folder.name} has no round whose policy is still there",
                hint=f"a training with an update is needed; `gradus restore` computes pruned weights again "
                f"(`gradus show {shlex.quote(self.folder.name)}` lists them)",
            )
        count = min(most, len(there))
        chosen = [there[round(place * (len(there) - 1) / max(1, count - 1))] for place in range(count)]
        return [self._round(index) for index in dict.fromkeys(chosen)]

    def _round(self, index: int) -> StoredRound:
        made = [self._sampled(ref) for ref in self._of(index, "rollout")]
        policies = [self._policy(index)]
        while (ref := self._updates.get(index + len(policies) - 1)) is not None and self._is_whole(ref):
            policies.append(ref)
        problems = Ref.parse(self.store.manifest(made[0].rollouts).parents["problems"][0])
        plans = [*self._of(index, "curate"), *self._of(index, "wave")]
        return StoredRound(index, policies, problems, plans, made, self._held_out(index), self._roles(index))

    def _roles(self, index: int) -> dict[str, Ref]:
        """Return the models of roles as the rounds before left them."""
        return {
            name: ref
            for (stage, at, name), ref in sorted(self.calls.items())
            if stage == "update" and name in self.recipe.roles and at < index and not is_skipped(self.store, ref)
        }

    def _of(self, index: int, stage: str) -> list[Ref]:
        """The artifacts of a stage in a round, without those of evaluation and profiling."""
        return [
            ref
            for (name, round_, purpose), ref in self.calls.items()
            if (name, round_) == (stage, index) and is_learned(purpose)
        ]

    def _sampled(self, rollouts: Ref) -> Sampled:
        facts = self.store.manifest(rollouts).identity.get("facts", {})
        scores = [ref for (stage, _, _), ref in self.calls.items() if stage == "score"]
        judged = [ref for ref in scores if self.store.manifest(ref).parents.get("rollouts") == [str(rollouts)]]
        return Sampled(str(facts.get("role", POLICY)), str(facts.get("use", LEARN)), rollouts, judged[:1], 0)

    def _policy(self, index: int) -> Ref:
        return Ref.parse(self.store.manifest(self._updates[index]).parents["policy"][0])

    def _is_whole(self, policy: Ref) -> bool:
        names = [entry.name for entry in self.store.manifest(policy).files if entry.name.endswith(".safetensors")]
        return bool(names) and not self.store.pruned(policy).intersection(names)

    def _held_out(self, index: int) -> Tables:
        """Return the rollouts of the policy's own evaluation, or without one those of a neighbouring round."""
        evaluated = self.calls.get(("evaluate", index - 1, "eval"))
        manifest = self.store.manifest(evaluated) if evaluated else None
        rollouts = manifest.parent("rollouts") if manifest else None  # which need not name a policy
        if manifest and rollouts and self.store.manifest(rollouts).parent("policy") == self._policy(index):
            return self._held(manifest.parents)
        update = self._updates.get(index + 1) or self._updates.get(index - 1)
        return self._held(self.store.manifest(update).parents) if update else {}

    def _held(self, parents: Mapping[str, Sequence[str]]) -> Tables:
        return {f"held_{name}": [Ref.parse(text) for text in parents[name]] for name in ("rollouts", "scores")}

    def _figures(self, index: int) -> Figures:
        tokens = sum(sampled_tokens("rollout", self._summary(ref)) for ref in self._of(index, "rollout"))
        update = self._updates.get(index)
        return Figures(tokens, {}, 0 if update is None else self._summary(update).get("updates", 0))

    def _summary(self, ref: Ref) -> Summary:
        return read_report(self.store, ref).get("summary", {})
