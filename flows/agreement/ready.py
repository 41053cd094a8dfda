"""An agreement or a bisection that can begin: rollouts and rewards, checked first. Does not import Prefect."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradus.data.curation.uses import LEARN, POLICY
from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref, Store
from gradus.flows.agreement.asked import AgreeAsked, BisectAsked
from gradus.flows.laboratory.stored import StoredRun
from gradus.flows.loop.inputs import problems_of
from gradus.flows.loop.reruns import stored_recipe
from gradus.flows.parameters import named
from gradus.flows.recipe.setting_faults import valid
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.config.score import SCORE, ScoreConfig
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.agreement.labels import LABELS
from gradus.tasks.inspect.agreement.pairs import OWN, Judged
from gradus.tasks.preflight.checks import check_stage
from gradus.tasks.runs.history import is_learned, run_folder

_ROLLOUTS = "rollouts"


@dataclass(frozen=True)
class AgreeReady:
    """An agreement that can begin."""

    names: Sequence[str]
    """Of the rewards, the run's own first if it takes part."""
    settings: Sequence[ScoreConfig]
    """Of those that judge."""
    stored: Sequence[Judged]
    """Rollouts with the scores that their run has of them, if one is named."""


def agree_ready(home: Home, asked: AgreeAsked) -> AgreeReady:
    """Return rewards and rollouts; UsageError if there is nothing to judge, or a reward cannot be used."""
    store = Store(home.lake)
    problems = [resolve_artifact(store, named(asked.problems), "problems")] if asked.problems else []
    rollouts = dict.fromkeys(map(named, asked.rollouts))
    stored = [each for name in rollouts for each in _stored(home, store, name, problems)]
    alone = [settings_of(reward, asked.at) for reward in asked.rewards]
    settings = [_summed(home, asked, alone)] if asked.together else alone
    names = list[str]()
    for each in settings:
        check_stage(SCORE, each, {})
        short = "+".join(reward.short for reward in each.rewards)
        names.append(short if short not in names else f"{short}-{len(names) + 1}")
    if len(names) > 1:
        return AgreeReady(names, settings, stored)
    lost = [str(each.rollouts) for each in stored if not each.scores]
    if lost:
        raise UsageError(
            f"one reward alone is compared with a run's own, and {lost[0]} was not scored by a run that is named",
            hint="name two rewards, or a run: --rollouts RUN",
        )
    return AgreeReady([OWN, *names], settings, stored)


def settings_of(reward: object, at: float | None) -> ScoreConfig:
    """Return the settings of judging by one reward; UsageError if there is none of this name."""
    return valid(ScoreConfig, {"rewards": [reward], "correct_at": at}, f"reward {reward}")


def _summed(home: Home, asked: AgreeAsked, alone: Sequence[ScoreConfig]) -> ScoreConfig:
    """Return the settings of a run's own judging with other rewards."""
    base = stored_recipe(home.runs, run_folder(home.runs, named(asked.rollouts[0])).name).score
    rewards = tuple(reward for each in alone for reward in each.rewards)
    at = base.correct_at if asked.at is None else asked.at
    body = base.model_dump(mode="json", exclude={"rewards", "correct_at"})
    return valid(ScoreConfig, {**body, "correct_at": at, "rewards": rewards}, "--together")


def _stored(home: Home, store: Store, name: str, problems: list[Ref]) -> list[Judged]:
    """Return the rollouts of a run that it judged, each artifact once, or the artifact of that name."""
    if not name.startswith(f"{_ROLLOUTS}/"):
        return stored_of(home, store, name, problems)
    ref = resolve_artifact(store, name, _ROLLOUTS)
    return [Judged(name, 0, _ROLLOUTS, ref, _problems(store, ref, name, problems), [])]


def stored_of(home: Home, store: Store, name: str, problems: Sequence[Ref] = ()) -> list[Judged]:
    """Return the rollouts of a run that it judged, each artifact once; UsageError if there are none."""
    folder = run_folder(home.runs, name)
    calls = StoredRun(store, folder).calls
    scores = [ref for (stage, _, _), ref in calls.items() if stage == "score"]
    own = {text: ref for ref in scores for text in store.manifest(ref).parents.get(_ROLLOUTS, ())}
    found: dict[Ref, Judged] = {}  # a round without an update has the evaluation of the round before it
    for (stage, index, purpose), ref in sorted(calls.items(), key=lambda each: (each[0][1], each[0][2])):
        facts = store.manifest(ref).identity.get("facts", {}) if stage == "rollout" else {}
        theirs = (facts.get("role", POLICY), facts.get("use", LEARN)) == (POLICY, LEARN)
        if stage == "rollout" and theirs and str(ref) in own and ref not in found:
            known = _problems(store, ref, str(ref), problems)
            found[ref] = Judged(folder.name, index, purpose, ref, known, [own[str(ref)]])
    if not found:
        raise UsageError(f"run {name} has no rollouts that were scored", hint="`gradus runs` lists runs")
    return list(found.values())


def _problems(store: Store, rollouts: Ref, name: str, given: Sequence[Ref]) -> list[Ref]:
    found = list(given) or problems_of(store, [rollouts])
    if not found:
        raise UsageError(f"{name} does not say which problems it answers", hint="name them: --problems P")
    return found


@dataclass(frozen=True)
class BisectReady:
    """A bisection that can begin."""

    stored: Sequence[Judged]
    """Rollouts of the run that are learned from, in the order of their rounds."""
    auditor: Sequence[ScoreConfig]
    """One; none if the user labels."""
    labels: Path | None
    beside: Sequence[ScoreConfig]


def bisect_ready(home: Home, asked: BisectAsked) -> BisectReady:
    """Return rollouts, auditor and cheap rewards; UsageError if there are none, or a reward cannot be used."""
    store, run = Store(home.lake), named(asked.run)
    stored = [each for each in stored_of(home, store, run) if each.round and is_learned(each.purpose)]
    if len({each.round for each in stored}) < 2:
        raise UsageError(f"run {run} has no two rounds that were scored", hint="`gradus runs` lists runs")
    is_file = isinstance(asked.auditor, str) and asked.auditor.endswith(LABELS)
    auditor = [] if is_file else [settings_of(asked.auditor, asked.at)]
    beside = [settings_of(reward, asked.at) for reward in asked.beside]
    for each in (*auditor, *beside):
        check_stage(SCORE, each, {})
    return BisectReady(stored, auditor, Path(asked.auditor).resolve() if is_file else None, beside)
