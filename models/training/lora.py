"""LoRA layers (arXiv 2106.09685) in a policy that is trained: W x + alpha / rank · B A x, of which A and B are stepped.

    add_lora(policy.model, LoraConfig(rank=16, alpha=32), seed=7)
    TrainState(policy.model, settings, seed=7).masters        # A and B of every layer, by name

peft puts the layers into the model in place, which stays the PreTrainedModel that it was. A and B are float32 whatever
the model computes in. B begins as zeros, so that the first policy is the base to the bit; A is drawn uniformly from
+-1 / sqrt(in), as peft draws it, from a generator of its own, so that it depends on the seed alone.
Left out: dropout (the log-probs of the update must be the sampler's), embeddings, the output layer, biases, the experts
of a mixture, which transformers keeps in one tensor of several matrices.
"""

import json
import math
import warnings
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn import Linear, Parameter
from transformers import PreTrainedModel

from gradus.models.adapters import PREFIX, Adapter, peft, refuse_unfit, refuse_variants
from gradus.models.errors import PolicyError
from gradus.models.policy_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from gradus.models.training.settings import LoraConfig

ALL_LINEAR = "all-linear"
_NAME = "default"
"""Name that peft uses for an adapter without one."""
_ENDINGS = tuple(f".lora_{side}.{_NAME}.weight" for side in "AB")
"""Suffixes of the names of A and B among a model's parameters."""


def add_lora(model: PreTrainedModel, settings: LoraConfig, seed: int, base: str = "") -> None:
    """Put new LoRA layers into a model in place and freeze the rest; PolicyError if a target is not a linear layer.

    `base` is what the adapter's configuration will call the model.
    """
    targets = settings.targets if isinstance(settings.targets, str) else sorted(settings.targets)
    config = peft().LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=targets,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    _refuse_targets(model, targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns of tied embeddings, which are refused as targets
        peft().inject_adapter_in_model(config, model, low_cpu_mem_usage=True)
    refuse_variants(model)
    generator = torch.Generator().manual_seed(seed)
    for layer in _layers(model).values():
        a = torch.empty(settings.rank, layer.in_features, dtype=torch.float32)
        torch.nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
        _set(layer, a, torch.zeros(layer.out_features, settings.rank, dtype=torch.float32))


def continue_lora(model: PreTrainedModel, settings: LoraConfig, adapter: Adapter) -> None:
    """Put LoRA layers with an adapter's matrices into its base's model; PolicyError unless the settings fit it."""
    refuse_unfit(model, adapter)
    add_lora(model, settings, seed=0, base=str(adapter.config.base_model_name_or_path))
    layers = _layers(model)
    odd = sorted(set(layers) ^ set(adapter.factors))
    if odd:
        which = "adapts" if odd[0] in adapter.factors else "does not adapt"
        raise PolicyError(f"{adapter.folder} {which} {odd[0]}, other than update.lora ({len(odd)} layers differ)")
    for module, layer in layers.items():
        a, b = adapter.factors[module]
        if len(a) != settings.rank:
            raise PolicyError(f"{adapter.folder} has rank {len(a)} in {module}, and rank = {settings.rank}")
        if not math.isclose(adapter.scale(module), settings.alpha / settings.rank):
            raise PolicyError(
                f"{adapter.folder} scales {module} by {adapter.scale(module):g}, and alpha = {settings.alpha} with "
                f"rank = {settings.rank} by {settings.alpha / settings.rank:g}"
            )
        _set(layer, a.float(), b.float())


def trained_parameters(model: PreTrainedModel) -> dict[str, Parameter]:
    """The parameters that an update steps, by name: A and B of LoRA layers if a model has some, else all."""
    every = dict(model.named_parameters())
    return {name: p for name, p in every.items() if name.endswith(_ENDINGS)} or every


def has_lora(model: PreTrainedModel) -> bool:
    """Return whether a model has LoRA layers."""
    return any(name.endswith(_ENDINGS) for name, _ in model.named_parameters())


@contextmanager
def without_lora(model: PreTrainedModel) -> Generator[None]:
    """Let a model compute as its base for a while."""
    layers = _layers(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def adapter_files(model: PreTrainedModel, weights: Mapping[str, Tensor], up: str = "") -> dict[str, bytes]:
    """The files of an adapter as peft writes them, by name.

    `weights` are those of `trained_parameters`, by their names there; `up` is put before the base's name, for a folder
    further down.
    """
    held: Any = model
    config: dict[str, Any] = held.peft_config[_NAME].to_dict()
    config |= {"base_model_name_or_path": up + config["base_model_name_or_path"], "inference_mode": True}
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    tensors = {PREFIX + name.replace(f".{_NAME}.", "."): weight for name, weight in weights.items()}
    content = {name: tensor.detach().float().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    return {
        ADAPTER_CONFIG: json.dumps(plain, indent=2, sort_keys=True).encode(),
        ADAPTER_WEIGHTS: save(content, {"format": "pt"}),
    }


def _layers(model: PreTrainedModel) -> dict[str, Any]:
    """The LoRA layers by the name of the module that they adapt."""
    kind = peft().tuners.lora.LoraLayer
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


def _set(layer: Any, a: Tensor, b: Tensor) -> None:
    device = layer.get_base_layer().weight.device
    for matrices, values in ((layer.lora_A, a), (layer.lora_B, b)):
        matrices[_NAME].weight = Parameter(values.to(device))


def _refuse_targets(model: PreTrainedModel, targets: str | Iterable[str]) -> None:
    """Raise PolicyError if a name is that of no linear layer, or of one that is not adapted."""
    if targets == ALL_LINEAR:
        return
    ends = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    usual = [name for name, module in model.named_modules() if isinstance(module, Linear) and id(module) not in ends]
    known = sorted({name.rpartition(".")[2] for name in usual})
    for target in targets:
        named = [each for name, each in model.named_modules() if name == target or name.endswith(f".{target}")]
        if not named or any(not isinstance(each, Linear) or id(each) in ends for each in named):
            raise PolicyError(f"{target} is no linear layer to adapt; the policy has {', '.join(known)}")
