"""The training loop: which stage follows which. Reads as the picture in the README."""

from dataclasses import dataclass
from functools import partial

from data.errors import GateError
from data.store import Ref
from flows.ahead import side_by_side
from flows.config import Recipe, stage_config
from tasks.config import Config, CurateConfig, EscalateConfig
from tasks.stage import Outcome, Session


@dataclass(frozen=True)
class Trained:
    """What a training run ends with."""

    policy: Ref
    best: Ref
    before: Outcome
    after: Outcome


@dataclass(frozen=True)
class Inputs:
    """What a training run starts from."""

    policy: Ref
    problems: Ref
    heldout: Ref


def train(session: Session, recipe: Recipe, start: Inputs) -> Trained:
    """Profile, build hints, then rounds of curate, rollout, score, update, with evaluations between."""
    steps = _Steps(session, recipe, start)
    before = steps.evaluate(start.policy, 0, baseline=None)
    policy, after = start.policy, before
    best_policy, best_pass_at_1 = start.policy, pass_at_1(before)
    difficulty = steps.profile(start.policy)
    hints = steps.hints()
    ahead: _Gathered | None = None
    for index in range(1, recipe.rounds + 1):
        gathered = ahead or steps.gather(index, policy, difficulty, hints)
        difficulty = gathered.difficulty
        learn = partial(steps.learn, index, policy, gathered)
        if recipe.overlap and index < recipe.rounds:
            following = partial(steps.gather, index + 1, policy, difficulty, hints)
            policy, ahead = side_by_side(learn, following, session.pool.halt)
        else:
            policy, ahead = learn(), None
        every = recipe.evaluate.every
        if index == recipe.rounds or (every and index % every == 0):
            after = steps.evaluate(policy, index, baseline=before.ref)
            if pass_at_1(after) > best_pass_at_1:
                best_policy, best_pass_at_1 = policy, pass_at_1(after)
    return Trained(policy=policy, best=best_policy, before=before, after=after)


def pass_at_1(evaluation: Outcome) -> float:
    """The pass@1 of an evaluation's report; GateError if no problem was judged, or it was not asked for."""
    found = evaluation.summary["pass_at"].get("1")
    if found is None:
        judged, rollouts = evaluation.summary["judged"], evaluation.summary["rollouts"]
        raise GateError(
            f"the evaluation of round {evaluation.round} has no pass@1 ({judged} of {rollouts} rollouts judged), "
            "and training chooses its best policy by it",
            hint="evaluate with a reward that says what is correct, and with 1 among evaluate.report.ks",
        )
    return float(found["value"])


@dataclass(frozen=True)
class _Gathered:
    """What a round learns from, and how difficult the problems are after it."""

    rollouts: list[Ref]
    scores: list[Ref]
    difficulty: Ref


@dataclass(frozen=True)
class _Steps:
    session: Session
    recipe: Recipe
    start: Inputs

    def run(self, name: str, base: Config, inputs: dict[str, list[Ref]], index: int, purpose: str = "train") -> Outcome:
        """One stage with this round's settings."""
        config = stage_config(self.recipe, name, index, base)
        return self.session.stage(name, config, inputs, round=index, purpose=purpose)

    def profile(self, policy: Ref) -> Ref | None:
        """Difficulty of the training problems under the starting policy, where the recipe asks for it."""
        if self.recipe.profile is None:
            return None
        plan = CurateConfig(sample=self.recipe.profile)
        rollouts, scores = self.sample_plan(plan, self.start.problems, policy, 0, "profile")
        inputs = {"rollouts": [rollouts], "scores": [scores]}
        return self.run("difficulty", self.recipe.difficulty, inputs, 0, "profile").ref

    def hints(self) -> Ref | None:
        """Hints for the training problems, where the recipe escalates."""
        if not self.recipe.escalate:
            return None
        return self.run("hint", self.recipe.hint, {"problems": [self.start.problems]}, 0).ref

    def gather(self, index: int, policy: Ref, difficulty: Ref | None, hints: Ref | None) -> _Gathered:
        """A round up to its update: problems chosen, tried by the policy, scored, the failed ones again with hints."""
        problems = [self.start.problems]
        curate = self.recipe.curate.model_copy(update={"round": index})
        plan = self.run("curate", curate, {"problems": problems, "difficulty": _maybe(difficulty)}, index).ref
        batches = [self.sample_and_score(plan, problems, policy, index)]
        for level in self.recipe.escalate if hints else ():
            rollouts, scores = batches[-1]
            failed = {"plan": [plan], "rollouts": [rollouts], "scores": [scores], "hints": _maybe(hints)}
            step = self.run(
                "escalate", EscalateConfig(level=level, sample=curate.sample), failed, index, f"hint{level}"
            )
            if not step.summary["groups"]:
                break
            plan = step.ref
            batches.append(self.sample_and_score(plan, problems, policy, index, f"hint{level}"))
        rollouts, scores = [r for r, _ in batches], [s for _, s in batches]
        measured = self.recipe.difficulty.model_copy(update={"round": index})
        seen = {"rollouts": rollouts[:1], "scores": scores[:1], "difficulty": _maybe(difficulty)}
        return _Gathered(rollouts, scores, self.run("difficulty", measured, seen, index).ref)

    def learn(self, index: int, policy: Ref, gathered: _Gathered) -> Ref:
        """A round's update: the policy that it ends with."""
        learned = {"rollouts": gathered.rollouts, "scores": gathered.scores, "policy": [policy]}
        if self.recipe.update.kl_coef:
            learned["reference"] = [self.start.policy]
        return self.run("update", self.recipe.update, learned, index).ref

    def evaluate(self, policy: Ref, index: int, baseline: Ref | None) -> Outcome:
        """The policy on the held-out problems, with the same seeds every time, beside the starting policy."""
        plan = CurateConfig(sample=self.recipe.evaluate.sample)
        rollouts, scores = self.sample_plan(plan, self.start.heldout, policy, index, "eval")
        inputs = {
            "problems": [self.start.heldout],
            "rollouts": [rollouts],
            "scores": [scores],
            "baseline": _maybe(baseline),
        }
        return self.run("evaluate", self.recipe.evaluate.report, inputs, index, "eval")

    def sample_plan(
        self, curate: CurateConfig, problems: Ref, policy: Ref, index: int, purpose: str
    ) -> tuple[Ref, Ref]:
        """Roll out and score every problem of a table."""
        plan = self.session.stage("curate", curate, {"problems": [problems]}, round=index, purpose=purpose).ref
        return self.sample_and_score(plan, [problems], policy, index, purpose)

    def sample_and_score(
        self, plan: Ref, problems: list[Ref], policy: Ref, index: int, purpose: str = "train"
    ) -> tuple[Ref, Ref]:
        """Rollouts of a plan and their scores."""
        # An evaluation is the same whenever it happens, so that two policies are given the same seeds.
        labelled = 0 if purpose in ("eval", "profile") else index
        rollout = self.recipe.rollout.model_copy(update={"round": labelled})
        inputs = {"plan": [plan], "problems": problems, "policy": [policy]}
        rollouts = self.run("rollout", rollout, inputs, index, purpose).ref
        scored = {"rollouts": [rollouts], "problems": problems}
        return rollouts, self.run("score", self.recipe.score, scored, index, purpose).ref


def _maybe(ref: Ref | None) -> list[Ref]:
    return [ref] if ref else []
