"""Check a recipe before a server, a worker or the first stage starts: files, names, and parts that fit one another.

check_recipe(load_recipe("mine.toml"), home.lake)      # UsageError or BadInputError, with what to change
"""

import contextlib
import math
from collections.abc import Generator, Sequence
from itertools import product
from pathlib import Path

from gradus.components.chosen import HINT_TEXTS, Chosen, MeasureConfig, WaveConfig
from gradus.components.settings import Config
from gradus.components.stage import Stage
from gradus.data.curation.uses import LEARN, POLICY, START, TEACHER, split_need
from gradus.data.errors import BadInputError, UsageError, shortened
from gradus.data.lake.schema import DIFFICULTY, OF_MARKS, OF_PARTS, PROBLEMS, ROLLOUTS, SCORES
from gradus.data.lake.store import Store
from gradus.data.nearest import did_you_mean
from gradus.flows.recipe.ahead import overlapping
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.by_round import (
    curate_config,
    hint_config,
    measure_config,
    recipe_of_suite,
    section,
    shaping_config,
    stage_config,
    suite_shaping,
    tracker_config,
    wave_config,
)
from gradus.flows.recipe.course.phases import settled
from gradus.flows.recipe.heads import check_heads, check_teachers
from gradus.flows.recipe.reading import with_guards_changes
from gradus.flows.recipe.samplings import samplings
from gradus.flows.recipe.suites import Suite
from gradus.tasks.config.curation import CURATE, HINT
from gradus.tasks.config.learning import UPDATE, UpdateConfig
from gradus.tasks.config.rollout import ROLLOUT, RoleConfig
from gradus.tasks.config.rounds import is_tracked
from gradus.tasks.config.score import SCORE
from gradus.tasks.preflight.abilities import check_learning, check_length, check_shapes, folder_of
from gradus.tasks.preflight.checks import check_components, check_input, check_inputs, check_stage
from gradus.tasks.stages.registry import stage_spec

GIVEN = ("given", "given_unsolved")
"""Waves whose texts need a loss of their origin."""
_A_WAVE = "add a wave that does, such as escalate or replay, or leave it out"


def check_recipe(recipe: Recipe, lake: Path) -> None:
    """Refuse a recipe with missing files, or with settings that a stage would certainly refuse."""
    suites = recipe.evaluate.suites
    problems = [*recipe.all_problems, *(suite.problems for suite in suites)]
    check_inputs(lake, problems=problems, policy=recipe.policy, teacher=recipe.teacher or None)
    for name, role in recipe.roles.items():
        with _said_of(f"roles.{name}.policy"):
            check_inputs(lake, policy=role.policy or None)
    for table, texts in recipe.begin.named.items():
        with _said_of(f"begin.{table}"):
            for text in texts:
                check_input(lake, text, table)
    _check_begin(recipe)
    check_settings(recipe, lake)
    models = (recipe.policy, recipe.teacher, *(role.policy for role in recipe.roles.values()))
    folders = {text: folder_of(lake, text) for text in models if text}
    check_heads(recipe, {text: folder for text, folder in folders.items() if folder.is_dir()})


@contextlib.contextmanager
def _said_of(place: str) -> Generator[None]:
    """Have the errors of a check begin with the place in the recipe that it is about."""
    try:
        yield
    except (UsageError, BadInputError) as error:
        raise type(error)(f"{place}: {error.message}", hint=error.hint) from None


def _check_begin(recipe: Recipe) -> None:
    """Raise UsageError for tables of an earlier run that no stage of the training would read."""
    begin, waves = recipe.begin, [wave for each in settled(recipe) for wave in each.all_waves]
    hinted = begin.plan or recipe.reads_hints or any(each.reads_hints for each in settled(recipe))
    for given, read, what, hint in (
        (begin.hints, hinted, "hints: no wave or measure of the recipe reads hints", _A_WAVE),
        (begin.rollouts, any(wave.reads("stored") for wave in waves), "rollouts: no wave takes up rollouts", _A_WAVE),
        (begin.rollouts, begin.scores, "rollouts: they need begin.scores", "give their scores too"),
        (begin.scores, begin.rollouts, "scores: they need begin.rollouts", "give their rollouts too"),
    ):
        if given and not read:
            raise UsageError(f"begin.{what}", hint=hint)


def check_settings(recipe: Recipe, lake: Path) -> None:
    """Refuse settings that a stage would certainly refuse in any round or phase, or after any guard."""
    phases = [*settled(recipe)]
    _check_texts(recipe.measures, [wave for each in phases for wave in each.all_waves])
    for each in map(with_guards_changes, phases):
        _check_settled(each, lake)


def _check_settled(recipe: Recipe, lake: Path) -> None:
    scores = (recipe.score, *(suite.score for suite in recipe.evaluate.suites if suite.score))
    stages: dict[Stage, Sequence[Config]] = {SCORE: scores, ROLLOUT: [recipe.rollout]}
    stages |= {UPDATE: [overlapping(recipe).update]} if recipe.rounds else {}
    stages |= {stage_spec(name): [section(recipe, name)] for name in recipe.stages}
    for stage, bases in stages.items():
        for index, base in product(_changed(recipe, stage.name), bases):
            _check_stage(recipe, stage, stage_config(recipe, stage.name, index, base))
    _check_trackers(recipe, lake)
    _check_measures(recipe)
    for index in _changed(recipe, "hint") if recipe.reads_hints else ():
        _check_stage(recipe, HINT, hint_config(recipe, index))
    for index in _changed(recipe, "curate"):
        curate = curate_config(recipe, index)
        _check_stage(recipe, CURATE, curate)
        if curate.hint_level > (most := len(hint_config(recipe, index).fractions)) and not recipe.begin.hints:
            message = f"curate.hint_level = {curate.hint_level}, and hint.fractions has {most} levels"
            raise UsageError(message, hint="lower it, or add fractions")
    names = [wave.short for wave in recipe.all_waves]
    for index, wave in product(_changed(recipe, "curate", "update", *names), recipe.all_waves):
        check_components(wave_config(recipe, wave, index))
        _check_stored(recipe, wave, index)
    for index in _changed(recipe, "update"):
        update = stage_config(recipe, "update", index, recipe.update)
        shaping_config(recipe, update)
        _check_uses(recipe, (*recipe.all_waves, *recipe.trackers, *recipe.measures, *update.shapes))
    _check_suites(recipe)
    _check_roles(recipe, lake)
    check_teachers(recipe)
    _check_sampling(recipe, lake)
    for index in _changed(recipe, "curate", *names, "update") if recipe.rounds and recipe.given is None else ():
        _check_groups(recipe, index)


def _check_trackers(recipe: Recipe, lake: Path) -> None:
    """Refuse trackers that cannot be used, and rows that one cannot begin with."""
    from gradus.tasks.artifacts.beginning import start_rows  # noqa: PLC0415 - loads Arrow's functions

    for tracker in recipe.trackers:
        for index in _changed(recipe, tracker.short):
            check_components(tracker_config(recipe, tracker, index))
        if tracker.start:
            start_rows(Store(lake), tracker)


def _check_measures(recipe: Recipe) -> None:
    """Refuse measures that cannot be used, or ask a model that the recipe does not have or that has no weights here."""
    for measure in recipe.measures:
        for index in _changed(recipe, measure.short):
            check_components(measure_config(recipe, measure, index))
        what, role = f"measure {measure.label}: role = {shortened(measure.role)!r}", recipe.roles.get(measure.role)
        if role is None and measure.role == TEACHER and not recipe.teacher:
            raise UsageError(f"{what}: the recipe has no teacher", hint='set teacher = "POLICY"')
        if role is None and measure.role not in (POLICY, START, TEACHER):
            known = (POLICY, START, TEACHER, *recipe.roles)
            hint = did_you_mean(measure.role, known, f"it can be {', '.join(known)}")
            raise UsageError(f"{what} is no role of the recipe", hint=hint)
        if role is not None and role.rollout.is_text:
            message = f"{what}: its server answers with text, and a measure computes with the weights of a model"
            raise UsageError(message, hint="name a role with weights")


def _check_texts(measures: Sequence[MeasureConfig], waves: Sequence[WaveConfig]) -> None:
    """Raise UsageError for a measure of texts where no wave has a file of them."""
    measure = next((each for each in measures if each.of_traces), None)
    if measure is not None and not any(wave.traces for wave in waves):
        message = f"measure {measure.label} is of the texts of a file, and no wave has one"
        raise UsageError(message, hint='set traces = "FILE" of a wave such as given, or leave it out')


def _check_suites(recipe: Recipe) -> None:
    for suite in recipe.evaluate.suites:
        plain = recipe_of_suite(recipe, suite)
        with _said_of(f"the suite {suite.name}"):
            for reader in (*suite.waves, *suite.measures, *suite.shapes):
                _check_evaluated(suite, reader)
            for wave in suite.waves:
                check_components(wave_config(plain, wave, 0))
            _check_measures(plain)
            _check_texts(suite.measures, suite.waves)
            check_components(suite_shaping(suite))
            check_shapes(suite.shapes)
            _check_uses(plain, (*suite.waves, *suite.measures, *suite.shapes))


def _check_evaluated(suite: Suite, reader: Chosen) -> None:
    """Raise UsageError for a component of a suite that needs what only a training has."""
    measured = [each.short for each in suite.measures]
    rounds = dict.fromkeys(("hint", HINT_TEXTS), "hints")
    rounds |= {"stored": "rollouts of earlier rounds", "traces": "texts that are given"}
    rounds |= dict.fromkeys({*DIFFICULTY.names} - {*PROBLEMS.names, *ROLLOUTS.names, *SCORES.names}, "difficulty")
    for need in reader.needs or ():
        what = f"the {reader.kind} {reader.label} needs {need}"
        if need == HINT_TEXTS or (reader.kind == "wave" and need in rounds):
            message = f"{what}, and an evaluation has no {rounds[need]}"
            raise UsageError(message, hint=f"take a {reader.kind} that reads its rollouts alone")
        if is_tracked(need) and (name := split_need(need)[1].partition(".")[0]) not in measured:
            hint = "an evaluation has the measures that stand in its suite (measures = [...]), and no trackers"
            raise UsageError(f"{what}, and it has no measure {name}", hint=hint)


def _check_stored(recipe: Recipe, wave: WaveConfig, index: int) -> None:
    """Raise UsageError if a wave takes up stored rollouts from which no update would learn."""
    if wave.reads("stored") and recipe.rounds and not wave_config(recipe, wave, index).max_age:
        more = ", one for the overlap" if recipe.overlap else ""
        raise UsageError(
            f"the wave {wave.label} takes up rollouts of earlier rounds, and update.max_age = {recipe.update.max_age} "
            f"lets no update learn from them{more}",
            hint=f"set update.max_age = {recipe.overlap + 1}, or more",
        )


def _check_stage(recipe: Recipe, stage: Stage, settings: Config) -> None:
    """Run the stage's own check on its settings and the inputs that the recipe names."""
    check_components(settings)  # before their columns are looked up
    named = {
        "problems": recipe.problems,
        "policy": recipe.policy,
        "reference": recipe.policy,
        "teacher": recipe.teacher,
        "hints": recipe.begin.hints or recipe.problems,
        "evaluated": recipe.evaluate.main.problems,
    }
    given = {role: [text] for role, text in named.items() if text and stage.used(settings, role)}
    check_stage(stage, settings, given)


def _check_roles(recipe: Recipe, lake: Path) -> None:
    """Refuse waves with a missing role (a user's wave names its own once it plans), and roles that could not sample."""
    of_suites = (wave for suite in recipe.evaluate.suites for wave in suite.waves)
    for wave in (*recipe.all_waves, *of_suites):
        role, known = wave.settings.get("role", POLICY) if wave.is_ours else POLICY, (POLICY, *recipe.roles)
        if role not in known:
            hint = f"add [roles.{role}] to it, with a policy or a server, or set role to one of {', '.join(known)}"
            raise UsageError(f"wave {wave.label} plans rows of the role {role}, which the recipe lacks", hint=hint)
    for name, base in recipe.roles.items():
        stage, policy = f"roles.{name}", base.policy or recipe.policy
        for role in (stage_config(recipe, stage, index, base) for index in _changed(recipe, stage)):
            check_stage(ROLLOUT, role.rollout, {"policy": [policy]})
            if not role.rollout.is_text:
                check_length(lake, policy, role.sample.max_tokens, f"roles.{name}.sample.max_tokens")
            _check_trained(recipe, name, role, policy)
    for use, judging in recipe.scores.items():
        stage = f"score.{use}"
        for index in _changed(recipe, stage):
            check_stage(SCORE, stage_config(recipe, stage, index, judging), {})


def _check_trained(recipe: Recipe, name: str, role: RoleConfig, policy: str) -> None:
    update = overlapping(recipe.model_copy(update={"roles": {name: role}})).roles[name].learning(name)
    if update is None:
        return
    if not recipe.scores:
        message = f"roles.{name}.update: nothing judges the rows that it samples"
        raise UsageError(message, hint="add [score.USE] to the recipe, of the use that a wave gives them")
    with _said_of(f"roles.{name}"):
        check_learning(role.rollout, update)
        check_stage(UPDATE, update, {"policy": [policy], "reference": [policy]})
    shaping_config(recipe, update)
    _check_uses(recipe, update.shapes)


def _check_uses(recipe: Recipe, readers: Sequence[Chosen]) -> None:
    """Refuse a component that reads scores of a use which the recipe does not judge."""
    for reader in readers:
        for use, column in map(split_need, reader.needs or ()):
            is_judged = column in SCORES.names or column.startswith((OF_PARTS, OF_MARKS))
            if is_judged and use not in (LEARN, POLICY, *recipe.scores):
                raise UsageError(
                    f"the {reader.kind} {reader.label} reads the column {column} of rows of the use {use}, which "
                    "nothing judges",
                    hint=f"add [score.{use}] with rewards to the recipe",
                )


def warm_up_remark(recipe: Recipe, rounds: int) -> list[str]:
    """Remark on a run that ends within its warm-up; no remark if its number of steps is unknown."""
    update, groups = recipe.update, recipe.curate.draw
    if update.minibatch_groups and not groups:
        return []
    steps = rounds * update.epochs * (math.ceil(groups / update.minibatch_groups) if update.minibatch_groups else 1)
    if not 0 < steps < update.warmup_steps:
        return []
    reached = f"update.lr is reached at optimiser step {update.warmup_steps} (update.warmup_steps)"
    return [f"the run ends within its warm-up: {reached}, and it takes about {steps}"]


def _check_groups(recipe: Recipe, index: int) -> None:
    """Raise UsageError if the advantage compares the rows of a group, and no group of a round has two that differ."""
    update = stage_config(recipe, "update", index, recipe.update)
    terms = [term for term in update.objective if not term.loss.component.regulariser]
    if any(term.loss.component.acts_without_advantage for term in terms):
        return
    compared = [a for term in terms if (a := term.advantage) is not None and a.component.compares_group]
    if len(compared) < len(terms) or not compared:
        return
    sample = stage_config(recipe, "curate", index, recipe.curate).sample
    waves = [wave_config(recipe, wave, index) for wave in recipe.all_waves]
    own = [each.wave.settings.get("n") for each in waves]  # waves that decide it themselves
    if any(isinstance(n, int) and n > 1 for n in own):
        return
    if any(s.n > 1 and s.temperature > 0 for s in (sample, *(each.sample for each in waves))):
        return
    what = "n = 1" if sample.n == 1 else "temperature = 0"
    raise UsageError(
        f"curate.sample.{what}: the advantage {compared[0].label} compares the completions of a group, "
        f"and a group {'has only one' if sample.n == 1 else 'would have the same one several times'}",
        hint="set curate.sample.n=8" if sample.n == 1 else "set curate.sample.temperature=1.0",
    )


def _check_sampling(recipe: Recipe, lake: Path) -> None:
    learning = overlapping(recipe).update
    for index in _changed(recipe, "rollout", "update"):
        rollout = stage_config(recipe, "rollout", index, recipe.rollout)
        if recipe.rounds:
            update = stage_config(recipe, "update", index, learning)
            check_learning(rollout, update)
            _check_given(recipe, update, index)
    for each in (sampling for sampling in samplings(recipe) if not sampling.rollout.is_text):
        max_tokens, rollout = each.sample.max_tokens, each.rollout
        check_length(lake, recipe.policy, max_tokens, f"{each.setting}.max_tokens")
        limit = rollout.vllm.max_model_len if rollout.engine == "vllm" else 0
        if limit and max_tokens >= limit:
            raise UsageError(
                f"{each.setting}.max_tokens = {max_tokens} leaves no room for a prompt: "
                f"rollout.vllm.max_model_len is {limit}",
                hint="raise the one or lower the other",
            )


def _check_given(recipe: Recipe, update: UpdateConfig, index: int) -> None:
    for wave in recipe.all_waves:
        setting = "given.rows" if recipe.given and wave.name == "given" else f"{wave.short}.traces"
        if wave.traces and not wave.reads("traces"):
            raise UsageError(f"{setting}: the wave {wave.label} plans no texts of a file", hint="leave it out")
        if wave.traces and not Path(wave.traces).is_file():
            what = f"{setting}: there is no file {shortened(wave.traces)}"
            raise UsageError(what, hint="give a .jsonl or .parquet file of traces")
        _check_best(recipe, wave)
        origin = wave_config(recipe, wave, index).wave.settings.get("origin") if wave.name in GIVEN else None
        if origin and not update.terms and origin not in [each.origin for each in update.origin_losses]:
            message = f"update.origin_losses has no loss for given rows, whose origin is {origin}"
            raise UsageError(message, hint=f'write update.origin_losses = [{{ origin = "{origin}", loss = "luffy" }}]')


def _check_best(recipe: Recipe, wave: WaveConfig) -> None:
    if wave.best and not wave.traces:
        raise UsageError(f"{wave.short}.best: the wave has no file of texts", hint='set traces = "FILE", too')
    known = [column for measure in recipe.measures if measure.of_traces for column in measure.keeps]
    if wave.best and wave.best not in known:
        hint = did_you_mean(wave.best, known, f"it can be {', '.join(known)}" if known else "add a measure by trace_id")
        raise UsageError(f"{wave.short}.best: {shortened(wave.best)} is no column of a measure of texts", hint=hint)


def _changed(recipe: Recipe, *stages: str) -> list[int]:
    """Return 0, a round without overrides, and the first round of each override of the stages."""
    return sorted({0, *(o.first_round for o in recipe.overrides if o.stage in stages)})
