"""Requirements of settings on each other, on the policy and on installed packages, checked before anything starts.

Only what a stage would certainly refuse is refused here; of a policy its config.json is read and nothing loaded, and
torch is imported only to look for a GPU. What an advantage returns must be something that the loss takes, and a method
that is defined as a mean over rows, or over tokens, needs an aggregation that weighs these alike. No part of an
objective names another.
"""

import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradus.components.chosen import ShapeConfig
from gradus.components.registry import components
from gradus.data.curation.uses import LEARN, split_need
from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.schema import CHECKPOINTS, OF_MARKS, OF_PARTS, OF_PLAN, OF_PROBLEM
from gradus.models.objectives.columns import COLUMNS, place_of
from gradus.models.policy_files import CONFIG, WHOLE, FileError, head_fault, num_scores, read_object
from gradus.tasks.config.learning import TermConfig, UpdateConfig
from gradus.tasks.config.redaction import check_key_variable
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.rounds import is_carried
from gradus.tasks.preflight.checks import average_of, bundled, in_lake, refuse_needs

_PACKAGES = {"vllm": ("vllm", "gpu"), "openai": ("openai", "openai")}
"""Packages that an engine needs beside ours, and the extra of pip that has them."""
_CARRIED = f", or {OF_PROBLEM}NAME, {OF_PLAN}NAME, {OF_PARTS}NAME, {OF_MARKS}NAME or TRACKER.NAME"
_WORDS = {"advantage": "advantages", "coefficient": "coefficients of log-probs", "return": "rewards as they stand"}


def check_ks(ks: Sequence[int], n: int) -> None:
    """Raise UsageError if pass@k would need more samples of a problem than there are."""
    if max(ks) > n:
        raise UsageError(
            f"pass@{max(ks)} needs {max(ks)} samples of each problem, and n is {n}",
            hint=f"sample {max(ks)}, or ask for a smaller k",
        )


def check_length(lake: Path, policy: str, max_tokens: int, setting: str = "max_tokens") -> None:
    """Raise UsageError if not even a prompt of one token fits beside the completion into what the policy attends to."""
    folder = folder_of(lake, policy)
    limit = positions(folder)
    if limit is not None and max_tokens >= limit and not num_scores(folder):  # one that scores texts samples nothing
        raise UsageError(
            f"{setting} = {max_tokens} leaves no room for a prompt: the policy {policy} has {limit} positions",
            hint=f"lower {setting}, or take a policy with more",
        )


def folder_of(lake: Path, policy: str) -> Path:
    """Return the folder of a policy, or of the base that is named beside an adapter; it need not be there."""
    text = policy if Path(policy).is_dir() else policy.rpartition("+")[2]
    found = in_lake(lake, text, CHECKPOINTS)
    return lake / str(found) if found else bundled(text) or average_of(lake, text) or Path(text)


def check_head(folder: Path, what: str, hint: str, *, scalar: bool) -> None:
    """Raise BadInputError if the model of a folder has not the head that is asked for, scalar or a vocabulary."""
    try:
        fault = head_fault(folder, scalar=scalar)
    except FileError as error:
        raise BadInputError(str(error), hint=WHOLE) from None
    if fault:
        raise BadInputError(f"{what} {fault}", hint=hint)


def check_engine(config: RolloutConfig, _inputs: object = None) -> None:
    """Raise UsageError if an engine's package is not installed, or its server has a key it may not have."""
    check_key_variable(config.server.api_key_variable, "server.api_key_variable")
    needed = [_PACKAGES[config.engine]] if config.engine in _PACKAGES else []
    for package, extra in [*needed, *([("ray", "ray")] if config.ray.workers else [])]:
        if find_spec(package) is None:
            raise UsageError(f"the package {package} is not installed", hint=f"pip install 'gradus[{extra}]'")


def check_learning(rollout: RolloutConfig, update: UpdateConfig) -> None:
    """Raise UsageError if an update would refuse every rollout that is sampled with these settings."""
    if rollout.is_text:
        raise UsageError(
            "server.tokens = false samples text without log-probs, and an update needs them",
            hint="set rollout.server.tokens=true, or train no rounds",
        )
    truncated = rollout.top_p < 1 or rollout.top_k > 0
    if truncated and update.correction is not None:
        raise UsageError(
            f"update.correction = {update.correction.label} does not hold for rollouts sampled with top_p or top_k",
            hint="set update.correction=none, or roll out with top_p = 1 and top_k = 0",
        )


def positions(folder: Path) -> int | None:
    """Return how many tokens the policy of a folder attends to; None if it has no configuration that says so."""
    path = folder / CONFIG
    if not path.is_file():
        return None
    try:
        config: Any = read_object(path)
    except FileError as error:
        raise BadInputError(str(error), hint=WHOLE) from None
    config = config.get("text_config") or config
    found = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return found if isinstance(found, int) else None


def check_update(config: UpdateConfig, inputs: Mapping[str, Sequence[str]]) -> None:
    """Raise UsageError for an optimiser, objective, adapter or launch that cannot be, or a policy that is missing."""
    for package in config.optimizer.component.libraries:
        _require(package, f"update.optimizer: {config.optimizer.label}", f"pip install {package}")
    check_objective(config)
    check_lora(config)
    check_launch(config)
    if config.loads_reference and not inputs.get("reference"):
        why = "kl_coef is set" if config.kl_coef else "a component reads it"
        raise UsageError(f"the objective needs a reference policy ({why})", hint="give --reference")
    if config.needs_teacher and not inputs.get("teacher") and (config.role or not config.teachers):
        raise UsageError(
            "the objective needs a teacher (a loss distils from it)",
            hint="give --teacher; in a recipe set teacher to a policy",
        )


def check_objective(config: UpdateConfig) -> None:
    """Raise UsageError if a part or a shape lacks an input, or a part stands beside those of another objective."""
    check_shapes(config.shapes)
    for part in config.parts:
        place = place_of(part.component)
        needs = [name for name in part.component.needs or () if not is_carried(name)]
        known = [name for name, column in COLUMNS.items() if place in column.places]
        is_later = place == "update" and any(name in COLUMNS and name not in known for name in needs)
        refuse_needs(part, needs, known, ', or declare when="step"' if is_later else _CARRIED)
    for term in config.objective:
        _refuse_carriers(term)
        _refuse_mean(term)


def check_shapes(shapes: Sequence[ShapeConfig]) -> None:
    """Raise UsageError if a shape needs a column that no rollouts have."""
    from gradus.data.curation.batch import BatchRows  # noqa: PLC0415 - loads Arrow's functions

    for shape in shapes:
        column = str(shape.settings.get("column", ""))
        if split_need(column)[0] != LEARN:
            raise UsageError(
                f"the shape {shape.label} goes by a column of its own rows, and {column!r} is of another use",
                hint='let a shape before it make a reward of that, as graded and verified do: column = "reward"',
            )
        plain = [name for need in shape.needs or () if not is_carried(name := split_need(need)[1])]
        refuse_needs(shape, plain, BatchRows.known, _CARRIED)


def _refuse_carriers(term: TermConfig) -> None:
    """Refuse a loss that can take nothing of what the advantage returns."""
    assert term.advantage is not None
    given, taken = set(term.advantage.component.returns), set(term.loss.component.takes)
    if not taken or given & taken:
        return
    fitting = " or ".join(name for name, each in components("loss").items() if given & set(each.takes))
    others = " or ".join(name for name, each in components("advantage").items() if taken & set(each.returns))
    raise UsageError(
        f"the advantage {term.advantage.label} returns {_listed(given)}, and the loss {term.loss.label} takes "
        f"{_listed(taken)}: together they train another objective",
        hint=f"set the loss to {fitting}, or the advantage to {others}",
    )


def _refuse_mean(term: TermConfig) -> None:
    """Refuse an aggregation that does not weigh alike what a part is defined as a mean over."""
    assert term.advantage is not None
    assert term.aggregation is not None
    over = term.aggregation.component.mean_over
    for part in (term.loss, *([term.advantage] if term.loss.component.takes else [])):
        wanted = part.component.mean_over
        if wanted and over != wanted:
            said = f"one over {over}s" if over else "none that it declares (mean_over)"
            fitting = " or ".join(name for name, each in components("aggregation").items() if each.mean_over == wanted)
            raise UsageError(
                f"the {part.kind} {part.label} is defined as a mean over {wanted}s, and the aggregation "
                f"{term.aggregation.label} is {said}: together they train another objective",
                hint=f"set the aggregation to {fitting}",
            )


def _listed(carried: AbstractSet[str]) -> str:
    return " or ".join(_WORDS[each] for each in sorted(carried))


def check_lora(config: UpdateConfig) -> None:
    """Raise UsageError if a package or a GPU is missing, or if another part of the update trains all weights."""
    if config.lora is None:
        return
    if config.needs_critic:
        raise UsageError(
            f"update.advantage = {config.advantage.label} trains a critic with all weights of a policy, update.lora "
            "an adapter alone",
            hint="take an advantage without a critic, such as grpo, or leave update.lora out",
        )
    _require("peft", "update.lora", "pip install 'gradus[lora]'")
    if config.lora.quantize == "nf4":
        _require("bitsandbytes", "update.lora.quantize = nf4", "pip install bitsandbytes, or set it to none")
        import torch  # noqa: PLC0415 - seconds, for those alone who ask for it

        if config.device == "cpu" or not torch.cuda.is_available():
            where = "update.device is cpu" if config.device == "cpu" else "PyTorch sees none here"
            raise UsageError(
                f"update.lora.quantize = nf4 computes on a GPU, and {where}", hint="set update.lora.quantize=none"
            )


def _require(package: str, setting: str, hint: str) -> None:
    if find_spec(package) is None:
        raise UsageError(f"{setting} needs the package {package}, which is not installed", hint=hint)


def check_launch(config: UpdateConfig) -> None:
    """Raise UsageError if several processes cannot do the update, or for more GPUs than this host has."""
    launch = config.launch
    if launch.num_ranks == 1:
        return
    if config.lora is not None and config.lora.quantize != "none":
        raise UsageError(
            "update.launch: several processes cannot divide a base in 4 bits (update.lora.quantize = nf4)",
            hint="set update.lora.quantize=none, or leave update.launch out",
        )
    if config.lora is None and not config.optimizer.component.elementwise:
        raise UsageError(
            f"update.launch: the optimizer {config.optimizer.label} needs whole parameters, and a rank has a part",
            hint="set update.optimizer to adamw or sgd, or declare yours with elementwise=True",
        )
    there = num_gpus()
    if there and config.device != "cpu" and launch.processes > there:
        raise UsageError(
            f"update.launch.processes = {launch.processes}, and this machine has {there} GPUs",
            hint=f"set update.launch.processes={there}, or update.device=cpu",
        )


def num_gpus() -> int:
    """Return how many NVIDIA GPUs a process started here would see; 0 if none, or if they are another maker's."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return found if chosen is None else min(found, len([name for name in chosen.split(",") if name.strip()]))
