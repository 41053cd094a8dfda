"""Check the requirements of an update before anything starts: objective, optimiser, adapter, several processes.

check_objective(UpdateConfig.model_validate({"advantage": "disco"}))     # UsageError: clip takes no coefficients
check_lora(UpdateConfig(lora=LoraConfig(quantize="nf4")))                # UsageError: no GPU here
check_launch(UpdateConfig.model_validate({"launch": {"processes": 2}, "optimizer": "adamw_8bit"}))     # UsageError

What an advantage returns must be something that the loss takes, and a method that is defined as a mean over rows, or
over tokens, needs an aggregation that weighs these alike. No part names another.
torch is imported only to look for a GPU.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from gradus.components import Kind
from gradus.components.chosen import Chosen
from gradus.components.description import Component
from gradus.components.registry import components
from gradus.data.errors import UsageError
from gradus.models.objectives.columns import COLUMNS, place_of
from gradus.tasks.config.learning import TermConfig, UpdateConfig
from gradus.tasks.preflight.checks import refuse_needs

_WORDS = {"advantage": "advantages", "coefficient": "coefficients of log-probs", "return": "rewards as they stand"}


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
    if config.needs_teacher and not inputs.get("teacher"):
        raise UsageError(
            "the objective needs a teacher (a loss distils from it)",
            hint="give --teacher; in a recipe set teacher to a policy",
        )


def check_objective(config: UpdateConfig) -> None:
    """Raise UsageError if a part lacks an input, or stands beside parts that train another objective."""
    for part in config.parts:
        _refuse_needs(part)
    for term in config.objective:
        _refuse_carriers(term)
        _refuse_mean(term)


def _refuse_needs(part: Chosen) -> None:
    place = place_of(part.component)
    known = [name for name, column in COLUMNS.items() if place in column.places]
    needs = part.component.needs or ()
    is_later = place == "update" and any(name in COLUMNS and name not in known for name in needs)
    refuse_needs(part, needs, known, ', or declare when="step"' if is_later else "")


def _refuse_carriers(term: TermConfig) -> None:
    """Refuse a loss that can take nothing of what the advantage returns."""
    assert term.advantage is not None
    given, taken = set(term.advantage.component.returns), set(term.loss.component.takes)
    if not taken or given & taken:
        return
    fitting = _names("loss", lambda each: bool(given & set(each.takes)))
    others = _names("advantage", lambda each: bool(taken & set(each.returns)))
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
            raise UsageError(
                f"the {part.kind} {part.label} is defined as a mean over {wanted}s, and the aggregation "
                f"{term.aggregation.label} is {said}: together they train another objective",
                hint=f"set the aggregation to {_names('aggregation', partial(_is_mean_over, wanted))}",
            )


def _is_mean_over(what: str, component: Component) -> bool:
    return component.mean_over == what


def _names(kind: Kind, fits: Callable[[Component], bool]) -> str:
    return " or ".join(name for name, each in components(kind).items() if fits(each))


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
        _require_gpu(config)


def _require(package: str, setting: str, hint: str) -> None:
    if find_spec(package) is None:
        raise UsageError(f"{setting} needs the package {package}, which is not installed", hint=hint)


def _require_gpu(config: UpdateConfig) -> None:
    import torch  # noqa: PLC0415 - seconds, for those alone who ask for it

    if config.device == "cpu" or not torch.cuda.is_available():
        where = "update.device is cpu" if config.device == "cpu" else "PyTorch sees none here"
        raise UsageError(
            f"update.lora.quantize = nf4 computes on a GPU, and {where}", hint="set update.lora.quantize=none"
        )


def check_launch(config: UpdateConfig) -> None:
    """Raise UsageError if several processes cannot do the update, or if it asks for more GPUs than there are.

    GPUs of other hosts are counted there.
    """
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
