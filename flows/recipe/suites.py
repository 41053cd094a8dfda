"""Evaluation suites of a recipe: problems that measure the policy, and the choice of the best checkpoint.

Two forms of the table `evaluate` mean the same for one suite:

    [evaluate]                              [[evaluate.suites]]
    problems = "bundled:heldout"            name = "heldout"
    sample = { n = 8 }                      problems = "bundled:heldout"
                                            sample = { n = 8 }

Keys beside `suites` hold for each suite that does not set them itself.
"""

from collections import Counter
from collections.abc import Mapping

from pydantic import Field, field_validator, model_validator

from gradus.components.chosen import MeasureConfig, ShapeConfig, WaveConfig
from gradus.components.settings import MAX_ROUNDS, Config, empty, unset
from gradus.data.lake.schema import NO_TRACKER
from gradus.models.templates import PromptConfig
from gradus.tasks.config.curation import SampleConfig
from gradus.tasks.config.rollout import RolloutConfig, Stops
from gradus.tasks.config.score import EvaluateConfig, ScoreConfig

LAST = "last"
"""The value of `select` that takes the last checkpoint, whatever the figures are."""
_FAMILIES = ("reward", "length", "data", "verifier", "perf", "policy", "mismatch", "trained")


class Suite(Config):
    """One evaluation suite: problems, their sampling and judging, and the figures to compute."""

    name: str = Field(default="heldout", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Name in every report, table and metric (`eval/NAME/...`)."""
    problems: str = "bundled:heldout"
    """Problem set: bundled:NAME, a file, a folder or an artifact."""
    sample: SampleConfig = Field(default_factory=SampleConfig)
    """Sampling of each problem; the same seeds for every policy."""
    prompt: PromptConfig | None = Field(default=None, exclude_if=unset)
    """Prompt of a problem, all of it; as in `rollout` unless given."""
    stop: Stops | None = Field(default=None, exclude_if=unset)
    """Stop strings; as in `rollout` unless given, [] for none."""
    score: ScoreConfig | None = None
    """Judging of completions; as in training unless given."""
    waves: tuple[WaveConfig, ...] = Field(default=(), exclude_if=empty)
    """Functions that plan further rollouts from those that are back, in this order; none of the training's."""
    measures: tuple[MeasureConfig, ...] = Field(default=(), exclude_if=empty)
    """Functions that ask a model about its problems or rollouts, whose columns its waves and shapes read."""
    shapes: tuple[ShapeConfig, ...] = Field(default=(), exclude_if=empty)
    """Functions that decide which of its rollouts are evaluated, in this order; verdicts stay those of its rewards."""
    report: EvaluateConfig = Field(default_factory=EvaluateConfig)
    """Figures to compute."""
    every: int = Field(default=0, ge=0, le=MAX_ROUNDS)
    """Evaluate after every N rounds; 0 only before and after."""
    seed: int = 0
    """Every seed of the evaluation derives from it, none from the run's: runs with other seeds draw the same."""
    reported: bool | None = None
    """Show the figures of this suite as a result; unless given, every suite but the one that `select` names."""

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name == LAST or name in _FAMILIES:
            raise ValueError(f"{name!r} has another meaning; call the suite something else")
        return name

    @model_validator(mode="before")
    @classmethod
    def _takes_one_of_each_problem(cls, given: object) -> object:
        """Report pass@1 alone unless said otherwise where shapes take some of the rollouts."""
        if not isinstance(given, Mapping) or not given.get("shapes"):
            return given
        report = given.get("report", {})
        return {**given, "report": {"ks": (1,), **report}} if isinstance(report, Mapping) else given

    @model_validator(mode="after")
    def _waves_know_no_rounds(self) -> "Suite":
        if odd := next((wave.label for wave in self.waves if wave.from_round > 1 or wave.until is not None), ""):
            raise ValueError(f"the wave {odd} has from_round or until, and an evaluation has no rounds")
        named = [each.short for each in (*self.waves, *self.measures)]
        if twice := next((name for name in named if named.count(name) > 1), ""):
            raise ValueError(f"two functions of the suite {self.name} are called {twice}; rename one")
        if odd := next((each.short for each in self.measures if each.short in NO_TRACKER), ""):
            raise ValueError(f"a measure cannot be called {odd}, which names other columns; rename the function")
        return self

    @model_validator(mode="after")
    def _has_enough_samples(self) -> "Suite":
        ks, n = self.report.ks, self.sample.n
        if 1 not in ks or min(ks) < 1:
            raise ValueError(f"ks = {list(ks)} must hold 1 (pass@1 is always reported) and nothing smaller")
        if max(ks) > n and not self.waves:
            what = f"pass@{max(ks)} needs {max(ks)} samples of each problem, and n is {n}"
            raise ValueError(f"{what}: set sample.n = {max(ks)}, or report.ks = {[k for k in ks if k <= n]}")
        return self

    @property
    def is_shaped(self) -> bool:
        """Return whether it decides which rollouts are evaluated; otherwise all are."""
        return bool(self.waves or self.shapes)

    def rollout(self, training: RolloutConfig) -> RolloutConfig:
        """Return the settings of its rollouts: as in training except those that the suite sets itself."""
        own = {"prompt": self.prompt, "stop": self.stop}
        return training.model_copy(update={name: value for name, value in own.items() if value is not None})


class EvaluationPlan(Config):
    """Rounds and problems on which the policy is evaluated, and the choice of the best checkpoint."""

    suites: tuple[Suite, ...] = Field(default_factory=lambda: (Suite(),))
    """The evaluation suites; the first reported one is the run's main figure."""
    select: str = ""
    """Name of the suite by whose pass@1 the best checkpoint is chosen, preferably of problems that nothing else uses.

    `last` takes the last checkpoint. Empty: the main suite chooses where it is evaluated between rounds (`every`),
    otherwise the last checkpoint is taken.
    """

    @model_validator(mode="before")
    @classmethod
    def _every_suite_has_what_they_share(cls, given: object) -> object:
        """Give each suite the keys that stand beside `suites`; without `suites` they are the only one."""
        if not isinstance(given, Mapping):
            return given
        body = dict(given)
        shared = {key: body.pop(key) for key in Suite.model_fields if key in body}
        suites = body.get("suites", [{}] if shared else None)
        if shared and isinstance(suites, list | tuple):
            body["suites"] = [_completed(suite, shared) for suite in suites]
        return body

    @model_validator(mode="after")
    def _names_are_clear(self) -> "EvaluationPlan":
        twice = [name for name, count in Counter(suite.name for suite in self.suites).items() if count > 1]
        if twice:
            raise ValueError(f"two suites are called {twice[0]!r}")
        known = [suite.name for suite in self.suites]
        staged = [suite.name for suite in self.suites if suite.waves or suite.measures]
        if both := next(((one, two) for one in staged for two in known if two.startswith(f"{one}-")), None):
            raise ValueError(f"the suite {both[1]} is called as stages of the suite {both[0]} are; rename one")
        if self.select not in ("", LAST, *known):
            raise ValueError(f"select = {self.select!r} names none of the suites ({', '.join(known)}) and is not last")
        if not self.reported:
            raise ValueError("no suite is reported; add one beside that which chooses the best checkpoint")
        return self

    @property
    def reported(self) -> tuple[Suite, ...]:
        """The suites whose figures are a result."""
        return tuple(s for s in self.suites if (s.name != self.select if s.reported is None else s.reported))

    @property
    def main(self) -> Suite:
        """The suite of the run's main figure."""
        return self.reported[0]

    @property
    def selection(self) -> Suite | None:
        """Return the suite that chooses the best checkpoint; None if the last one is taken."""
        if self.select == LAST:
            return None
        if self.select:
            return next(suite for suite in self.suites if suite.name == self.select)
        return self.main if self.main.every else None

    def purpose(self, suite: Suite) -> str:
        """Return the purpose of the stages of an evaluation: `eval` for the main suite, `eval-NAME` for the others."""
        return "eval" if suite.name == self.main.name else f"eval-{suite.name}"


def _completed(suite: object, shared: Mapping[str, object]) -> object:
    if isinstance(suite, Suite):
        suite = suite.model_dump(exclude_unset=True)
    return {**shared, **suite} if isinstance(suite, Mapping) else suite
