"""An agreement that can begin: its rollouts and rewards, checked before anything starts. Does not import Prefect."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gradus.data.curation.uses import LEARN, POLICY
from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref, Store
from gradus.flows.agreement.asked import AgreeAsked
from gradus.flows.laboratory.stored import StoredRun
from gradus.flows.loop.inputs import problems_of
from gradus.flows.loop.reruns import stored_recipe
from gradus.flows.recipe.setting_faults import valid
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.config.score import SCORE, RewardConfig, ScoreConfig
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.agreement.pairs import OWN
from gradus.tasks.preflight.checks import check_stage
from gradus.tasks.runs.history import run_folder

_ROLLOUTS = "rollouts"


@dataclass(frozen=True)
class Stored:
    """Rollouts of one artifact."""

    run: str
    """Name of the run, or of the artifact where none is named."""
    round: int
    purpose: str
    rollouts: Ref
    problems: list[Ref]
    own: Ref | None
    """Their scores in the run."""


@dataclass(frozen=True)
class AgreeReady:
    """An agreement that can begin."""

    names: Sequence[str]
    """Of the rewards, the run's own first if it takes part."""
    settings: Sequence[ScoreConfig]
    """Of those that judge."""
    stored: Sequence[Stored]


def agree_ready(home: Home, asked: AgreeAsked) -> AgreeReady:
    """Return rewards and rollouts; UsageError if there is nothing to judge, or a reward cannot be used."""
    store = Store(home.lake)
    problems = [resolve_artifact(store, asked.problems, "problems")] if asked.problems else []
    stored = [each for name in asked.rollouts for each in _stored(home, store, name, problems)]
    alone = [settings_of(reward, asked.at) for reward in asked.rewards]
    settings = [_summed(home, asked, alone)] if asked.together else alone
    check_rewards(settings)
    names = list[str]()
    for each in settings:
        short = "+".join(reward.short for reward in each.rewards)
        names.append(short if short not in names else f"{short}-{len(names) + 1}")
    if len(names) > 1:
        return AgreeReady(names, settings, stored)
    lost = [str(each.rollouts) for each in stored if each.own is None]
    if lost:
        raise UsageError(
            f"one reward alone is compared with a run's own, and {lost[0]} was not scored by a run that is named",
            hint="name two rewards, or a run: --rollouts RUN",
        )
    return AgreeReady([OWN, *names], settings, stored)


def check_rewards(settings: Sequence[ScoreConfig]) -> None:
    """Raise UsageError or BadInputError if a reward cannot be used."""
    for each in settings:
        check_stage(SCORE, each, {})


def settings_of(reward: object, at: float | None) -> ScoreConfig:
    """Return the settings of judging by one reward; UsageError if there is none of this name."""
    body = {"name": reward} if isinstance(reward, str) else reward
    try:
        return ScoreConfig(rewards=(RewardConfig.model_validate(body),), correct_at=at)
    except ValidationError as error:
        raise UsageError(f"reward {reward}: {error.errors()[0]['msg']}", hint="`gradus methods` lists them") from None


def _summed(home: Home, asked: AgreeAsked, alone: Sequence[ScoreConfig]) -> ScoreConfig:
    """Return the settings of a run's own judging with other rewards."""
    base = stored_recipe(home.runs, run_folder(home.runs, asked.rollouts[0]).name).score
    rewards = tuple(reward for each in alone for reward in each.rewards)
    at = base.correct_at if asked.at is None else asked.at
    body = base.model_dump(mode="json", exclude={"rewards", "correct_at"})
    return valid(ScoreConfig, {**body, "correct_at": at, "rewards": rewards}, "--together")


def _stored(home: Home, store: Store, name: str, problems: list[Ref]) -> Iterator[Stored]:
    """Yield the rollouts of a run that it judged, each artifact once, or the artifact of that name."""
    if name.startswith(f"{_ROLLOUTS}/"):
        ref = resolve_artifact(store, name, _ROLLOUTS)
        yield Stored(name, 0, _ROLLOUTS, ref, _known(name, problems or problems_of(store, [ref])), None)
        return
    yield from stored_of(home, store, name, problems)


def stored_of(home: Home, store: Store, name: str, problems: Sequence[Ref] = ()) -> list[Stored]:
    """Return the rollouts of a run that it judged, each artifact once; UsageError if there are none."""
    found = list(_of_run(store, run_folder(home.runs, name), list(problems)))
    if not found:
        raise UsageError(f"run {name} has no rollouts that were scored", hint="`gradus runs` lists runs")
    return found


def _of_run(store: Store, folder: Path, problems: list[Ref]) -> Iterator[Stored]:
    calls = StoredRun(store, folder).calls
    scores = {call: ref for call, ref in calls.items() if call[0] == "score"}
    by_rollouts = {text: ref for ref in scores.values() for text in store.manifest(ref).parents.get(_ROLLOUTS, ())}
    seen = set[Ref]()  # a round without an update has the evaluation of the round before it
    for (stage, index, purpose), ref in sorted(calls.items(), key=lambda each: (each[0][1], each[0][2])):
        facts = store.manifest(ref).identity.get("facts", {}) if stage == "rollout" else {}
        theirs = (facts.get("role", POLICY), facts.get("use", LEARN)) == (POLICY, LEARN)
        if stage == "rollout" and theirs and str(ref) in by_rollouts and ref not in seen:
            seen.add(ref)
            known = _known(str(ref), problems or problems_of(store, [ref]))
            yield Stored(folder.name, index, purpose, ref, known, by_rollouts[str(ref)])


def _known(name: str, problems: list[Ref]) -> list[Ref]:
    if not problems:
        raise UsageError(f"{name} does not say which problems it answers", hint="name them: --problems P")
    return problems
