"""A user's reward pinned: its file, every other module of the user's that it leads to, and the libraries it imports.

A judge process finds them (gradus.models.judging.inspection), never this one. What a reward loads by a name that only
its run decides is not found beforehand: it fails the stage, is remembered beside the lake, and counts from the next
command on.
"""

from collections.abc import Mapping
from pathlib import Path

from gradus.data.errors import BadInputError
from gradus.data.lake.manifest import sha256_file
from gradus.models.judging.inspection import Inspection, add, inspect
from gradus.models.judging.pool import JudgeStartError, UnpinnedModulesError
from gradus.models.rewards import USER_MODULE, RewardSpec, resolve
from gradus.models.rewards.imports import Module
from gradus.tasks.config.key_variables import check_seen_variables
from gradus.tasks.config.score import RewardConfig
from gradus.tasks.identity.component_modules import read_modules
from gradus.tasks.identity.late_modules import remember, remember_late, remembered
from gradus.tasks.identity.libraries import distributions_of, library_versions

Stamp = tuple[tuple[str, int, int], ...]

_INSPECTED: dict[tuple[str, str], tuple[Stamp, Inspection]] = {}


def pinned_reward(reward: RewardConfig, *, renew: bool = False) -> RewardConfig:
    """The reward with the digests and versions of what a user's function consists of; others as they are.

    Digests that are there already stay, unless they shall be renewed. Raise BadInputError if the file or the
    function cannot be used.
    """
    check_seen_variables(reward.variables, f"{reward.label}: variables")
    if not reward.is_users or (reward.source_sha256 and not renew):
        return reward
    spec = resolve(reward.name, reward.settings, variables=reward.variables)
    try:
        found = _inspected(spec)
    except JudgeStartError as error:
        raise BadInputError(str(error), hint="correct the file and run the same command again") from error
    modules = dict(found.modules)
    source, path = modules.pop(USER_MODULE).sha256, Path(spec.path)
    in_source = read_modules(path, [])[0]
    unread = {name: module.path for name, module in modules.items() if name not in in_source}
    remember("loaded", source, path.parent, unread)
    for name, file in remembered("late", source, path.parent).items():
        if file.is_file():
            add(modules, Module(name, str(file), sha256_file(file)))
    return reward.model_copy(
        update={
            "source_sha256": source,
            "modules": {name: module.sha256 for name, module in sorted(modules.items())},
            "libraries": library_versions(distributions_of(found.packages)),
        }
    )


def refusal(spec: RewardSpec, error: UnpinnedModulesError) -> BadInputError:
    """Return the message on modules that the identity of the scores does not hold; late ones are remembered."""
    remember_late(spec.sha256, Path(spec.path).parent, {**error.late, **error.changed})
    reward = Path(spec.path).name
    if error.changed:
        files = _names(error.changed)
        return BadInputError(f"{files} was changed while the command ran", hint="run the same command again")
    return BadInputError(
        f"the reward {reward} loaded {_names(error.late)} only while it judged, so its scores were not known to depend "
        "on that",
        hint="run the same command again: it counts from the start what was found now",
    )


def _names(modules: Mapping[str, str]) -> str:
    return ", ".join(sorted({Path(path).name for path in modules.values()}))


def _inspected(spec: RewardSpec) -> Inspection:
    """Return the modules that a judge found, or found earlier in this process if no file has been touched since."""
    known = _INSPECTED.get((spec.path, spec.function))
    if known is not None and known[0] == _stamp(known[1]):
        return known[1]
    found = inspect(spec)
    _INSPECTED[spec.path, spec.function] = (_stamp(found), found)
    return found


def _stamp(inspection: Inspection) -> Stamp:
    paths = sorted({module.path for module in inspection.modules.values()})
    stats = [(path, Path(path).stat()) for path in paths if Path(path).exists()]
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)
