"""Whether the parts of an objective go together, looked at before anything starts; torch is not imported.

check_objective(UpdateConfig.model_validate({"loss": "tbrm"}))     # UsageError: its advantage is reward
"""

from gradus.components import Need
from gradus.components.chosen import Chosen
from gradus.data.errors import UsageError
from gradus.tasks.config.learning import UpdateConfig

_OF_A_STEP: frozenset[Need] = frozenset({"logp", "entropy", "reference", "values"})
_OF_A_LOSS: frozenset[Need] = frozenset(
    {"reference", "reference_mean_logp", "mean_logp", "logsumexp", "logp_at_1", "teacher"}
)


def check_objective(config: UpdateConfig) -> None:
    """UsageError if a part is handed nothing of what it needs, or stands beside parts that train another objective."""
    check_needs(config)
    chosen = {part.kind: part for part in (config.aggregation, config.loss, config.advantage)}
    for part in (config.advantage, *config.losses):
        wanted = part.component.goes_with
        odd = [kind for kind, name in wanted.items() if chosen[kind].name != name]
        if odd:
            listed = " and ".join(f"the {kind} {name}" for kind, name in wanted.items())
            found = " and ".join(f"the {kind} {chosen[kind].label}" for kind in odd)
            raise UsageError(
                f"the {part.kind} {part.label} is defined with {listed}; with {found} another objective is trained",
                hint="set " + " and ".join(f"update.{kind}={wanted[kind]}" for kind in odd),
            )


def check_needs(config: UpdateConfig) -> None:
    """UsageError if a component needs what its kind is not handed."""
    others = [config.aggregation, *([config.correction] if config.correction is not None else [])]
    for part in (config.advantage, *config.weights):
        _refuse_needs(part, _OF_A_STEP)
    for part in config.losses:
        _refuse_needs(part, _OF_A_LOSS)
    for part in others:
        _refuse_needs(part, frozenset())


def _refuse_needs(part: Chosen, known: frozenset[Need]) -> None:
    odd = sorted(set(part.component.needs) - known)
    if odd:
        raise UsageError(
            f"{part.kind} {part.label} needs {odd[0]}, which its kind is not handed",
            hint=f"it can need {', '.join(sorted(known)) or 'nothing'}",
        )
