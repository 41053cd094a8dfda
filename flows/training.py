"""The training loop: which stage follows which. Reads as the picture in the README."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from data.store import Ref
from flows.ahead import side_by_side
from flows.config import Recipe, stage_config
from flows.measuring import Choice, Figures, Measurements
from flows.suites import Suite
from tasks.config import Config, CurateConfig, EscalateConfig, ScoreConfig
from tasks.stage import Outcome, Session


@dataclass(frozen=True)
class Trained:
    """What a training run ends with: its last and its best policy, and the figures of the reported suites by name.

    Without a choice the best policy is the last one.
    """

    policy: Ref
    best: Ref
    figures: Mapping[str, Figures]
    choice: Choice | None


@dataclass(frozen=True)
class Inputs:
    """What a training run starts from."""

    policy: Ref
    problems: Ref
    suites: Mapping[str, Ref]
    """Problems of each evaluation suite by its name."""


def train(session: Session, recipe: Recipe, start: Inputs) -> Trained:
    """Profile, build hints, then rounds of curate, rollout, score, update, with evaluations between."""
    steps = _Steps(session, recipe, start)
    measured = Measurements(recipe.evaluate, start.suites, steps.evaluate)
    measured.take(0, start.policy, last=not recipe.rounds)
    policy = start.policy
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
        measured.take(index, policy, last=index == recipe.rounds)
    choice = measured.choice()
    best = choice.round if choice else recipe.rounds
    return Trained(policy, measured.policies[best], measured.figures(best), choice)


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

    def run(
        self,
        name: str,
        base: Config,
        inputs: dict[str, list[Ref]],
        index: int,
        purpose: str = "train",
        seed: int | None = None,
    ) -> Outcome:
        """One stage with this round's settings; its seed is the run's unless given."""
        config = stage_config(self.recipe, name, index, base)
        return self.session.stage(name, config, inputs, round=index, purpose=purpose, seed=seed)

    def profile(self, policy: Ref) -> Ref | None:
        """Difficulty of the training problems under the starting policy, where the recipe asks for it."""
        if self.recipe.profile is None:
            return None
        plan = CurateConfig(sample=self.recipe.profile)
        problems = {"problems": [self.start.problems]}
        planned = self.session.stage("curate", plan, problems, purpose="profile").ref
        rollouts, scores = self.sample_and_score(planned, [self.start.problems], policy, 0, "profile")
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

    def evaluate(self, suite: Suite, policy: Ref, index: int, baseline: Ref | None) -> Outcome:
        """The policy on a suite, with the same seeds every time, beside the evaluation of the starting policy."""
        problems, seed, purpose = self.start.suites[suite.name], suite.seed, self.recipe.evaluate.purpose(suite)
        plan = CurateConfig(sample=suite.sample)
        planned = self.session.stage(
            "curate", plan, {"problems": [problems]}, round=index, purpose=purpose, seed=seed
        ).ref
        rollouts, scores = self.sample_and_score(planned, [problems], policy, index, purpose, suite.score, seed)
        inputs = {
            "problems": [problems],
            "rollouts": [rollouts],
            "scores": [scores],
            "baseline": _maybe(baseline),
        }
        return self.run("evaluate", suite.report, inputs, index, purpose, seed)

    def sample_and_score(
        self,
        plan: Ref,
        problems: list[Ref],
        policy: Ref,
        index: int,
        purpose: str = "train",
        score: ScoreConfig | None = None,
        seed: int | None = None,
    ) -> tuple[Ref, Ref]:
        """Rollouts of a plan and their scores; judged and seeded as in training unless said otherwise."""
        # An evaluation is the same whenever it happens, so that two policies are given the same seeds.
        apart = purpose == "profile" or purpose.startswith("eval")
        rollout = self.recipe.rollout.model_copy(update={"round": 0 if apart else index})
        inputs = {"plan": [plan], "problems": problems, "policy": [policy]}
        rollouts = self.run("rollout", rollout, inputs, index, purpose, seed).ref
        scored = {"rollouts": [rollouts], "problems": problems}
        return rollouts, self.run("score", score or self.recipe.score, scored, index, purpose, seed).ref


def _maybe(ref: Ref | None) -> list[Ref]:
    return [ref] if ref else []
