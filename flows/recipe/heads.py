"""Models of a recipe: roles that cannot teach, and heads that are not what a setting asks for."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from gradus.data.curation.uses import POLICY, START, TEACHER
from gradus.data.errors import UsageError, shortened
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.phases import of_each_phase
from gradus.tasks.preflight.abilities import check_head

_SCORER = 'name a reward model: [roles.rm] with policy = "FOLDER", and role = "rm" of the measure'
_LANGUAGE = "name a language model; one that scores texts is asked by a measure: [[measures]] with its role"


def check_teachers(recipe: Recipe) -> None:
    """Refuse a teacher of `update.teachers` that is no role with weights of its own."""
    for name in recipe.update.teachers:
        what, role = f"update.teachers.{name}", recipe.roles.get(name)
        if role is None:
            raise UsageError(f"{what}: the recipe has no role {name}", hint=f"add [roles.{name}] with its policy")
        if role.rollout.is_text:
            message = f"{what}: its server answers with text, and a teacher computes log-probs"
            raise UsageError(message, hint="name a role with weights")
        if not role.policy and role.update is None:
            message = f"{what}: the role {name} is the policy itself, which has nothing to teach"
            raise UsageError(message, hint=f"set roles.{name}.policy")


def check_heads(recipe: Recipe, folders: Mapping[str, Path]) -> None:
    """Refuse a model with a scalar head that samples or is trained, and one without it that a measure asks for values.

    `folders` are those of models by their names in the recipe; a name that is none of them is left out.
    """
    for each in of_each_phase(recipe):
        for setting, named, scalar in _models_asked(each):
            if named in folders:
                hint = _SCORER if scalar else _LANGUAGE
                check_head(folders[named], f"{setting}: {shortened(named)}", hint, scalar=scalar)


def _models_asked(recipe: Recipe) -> Iterator[tuple[str, str, bool]]:
    """Yield each setting that decides on a model, the name of the model, and whether it needs a scalar head."""
    suites = recipe.evaluate.suites
    waves = (*recipe.all_waves, *(wave for suite in suites for wave in suite.waves))
    planned = {wave.settings.get("role") for wave in waves if wave.is_ours}
    roles = {name: role.policy or recipe.policy for name, role in recipe.roles.items()}
    yield "policy", recipe.policy, False
    yield "teacher", recipe.teacher, False
    yield from (
        (f"roles.{name}.policy", roles[name], False)
        for name, role in recipe.roles.items()
        if role.update is not None or name in planned or name in recipe.update.teachers
    )
    named = {POLICY: recipe.policy, START: recipe.policy, TEACHER: recipe.teacher, **roles}
    for measure in recipe.all_measures:
        if measure.declared.needs_head:
            yield f"measure {measure.label}", named[measure.role], True
