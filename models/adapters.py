"""LoRA adapters (arXiv 2106.09685) as policies: W + scale · B A in the linear layers of a base policy.

    adapter = read_adapter(Path("adapter"))
    model = merged(model_of(adapter.base), adapter)

A folder as peft writes it: adapter_config.json, whose `base_model_name_or_path` leads from that folder to the base, and
adapter_model.safetensors. scale = lora_alpha / r; with rsLoRA (arXiv 2312.03732) lora_alpha / sqrt(r).
peft reads its own files. What it reads is judged by what comes of it: matrices of other layers, other layers than
plain ones in the model, a base that changes are refused, a key that this version of peft does not know is not.
Left out: whatever else peft can adapt (DoRA, biases, embeddings, whole modules, experts).
"""

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Linear
from transformers import PreTrainedModel

from gradus.components.libraries import library_reason
from gradus.models.errors import PolicyError
from gradus.models.policy_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, FileError, is_adapter, refuse_broken
from gradus.models.weight_check import fixed_set, tensor_sum, verify_weights

if TYPE_CHECKING:
    from peft import LoraConfig

PREFIX = "base_model.model."
"""Prefix of the names of modules in peft's files."""
_TENSOR = re.compile(re.escape(PREFIX) + r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Supported initialisations of A and B; others (PiSSA, OLoRA, LoftQ) change the base's weights too."""
_SAME_FRAC = 0.01
"""Share of an adapter's mean change of a matrix by which rounding may put the merged one off."""


@dataclass(frozen=True)
class Adapter:
    """An adapter's folder and what its configuration says, checked."""

    folder: Path
    config: "LoraConfig"
    """As peft reads it."""

    @property
    def base(self) -> Path:
        """The folder of the base policy."""
        return (self.folder / str(self.config.base_model_name_or_path)).resolve()

    @cached_property
    def factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Module -> A (r, in) and B (out, r), as in the file; raise PolicyError if it holds anything else."""
        path, found = self.folder / ADAPTER_WEIGHTS, dict[str, dict[str, Tensor]]()
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise PolicyError(f"{path} cannot be read{library_reason(error)}") from None
        for name, tensor in tensors.items():
            match = _TENSOR.fullmatch(name)
            if match is None:
                raise PolicyError(f"{self.folder} adapts more than linear layers ({name}), which is not supported")
            found.setdefault(match["module"], {})[match["side"]] = tensor
        for module, sides in found.items():
            shapes = [tuple(tensor.shape) for tensor in sides.values()]
            if set(sides) != {"A", "B"} or sides["A"].ndim != 2 or sides["B"].shape[1:] != sides["A"].shape[:1]:
                raise PolicyError(f"{self.folder}: {module} has no pair of matrices A (r, in) and B (out, r): {shapes}")
        if not found:
            raise PolicyError(f"{path} holds no matrices")
        return {module: (sides["A"], sides["B"]) for module, sides in sorted(found.items())}

    @property
    def rank(self) -> int:
        """The largest rank of its matrices."""
        return max(a.shape[0] for a, _ in self.factors.values())

    def scale(self, module: str) -> float:
        """Return the factor of B A in a module."""
        rank = self.factors[module][0].shape[0]
        patterns: Mapping[str, float] = self.config.alpha_pattern or {}
        own = (alpha for key, alpha in patterns.items() if re.fullmatch(rf"(.*\.)?({key})", module))
        alpha = next(own, self.config.lora_alpha)
        return alpha / (math.sqrt(rank) if self.config.use_rslora else rank)

    def sums(self, dtype: torch.dtype) -> list[str]:
        """Checksums of every A and every scaled B in a number format, sorted: what an engine must hold."""
        scaled = ((a.to(dtype), b.to(dtype) * self.scale(module)) for module, (a, b) in self.factors.items())
        return sorted(tensor_sum(tensor) for pair in scaled for tensor in pair)


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter's configuration by peft; PolicyError says what of it is not supported or missing."""
    path = folder / ADAPTER_CONFIG
    try:
        refuse_broken(folder)
    except FileError as error:
        raise PolicyError(str(error)) from None
    config = _config(path)
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise PolicyError(f"{folder} has no {ADAPTER_WEIGHTS}, and other formats can run code")
    adapter = Adapter(folder, config)
    if is_adapter(adapter.base) or not adapter.base.is_dir():
        what = "is an adapter itself" if is_adapter(adapter.base) else "is not there"
        raise PolicyError(f"the base of the adapter {folder}, {adapter.base}, {what}")
    return adapter


def peft() -> Any:
    """The library peft, an extra that is imported when it is needed."""
    try:
        import peft as library  # noqa: PLC0415
    except ImportError:
        raise PolicyError("adapters need the package peft: pip install 'gradus[lora]'") from None
    return library


def base_of(folder: Path) -> Path:
    """The folder with the weights and the configuration: the base of an adapter, and of a whole policy itself."""
    return read_adapter(folder).base if is_adapter(folder) else folder


def merged(model: PreTrainedModel, adapter: Adapter) -> PreTrainedModel:
    """Add the adapter to the weights of the base's model in place, by peft; raise PolicyError if they do not fit."""
    refuse_unfit(model, adapter)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what peft warns of is refused before or after
            wrapped = peft().PeftModel.from_pretrained(model, str(adapter.folder), torch_device="cpu")
        refuse_variants(wrapped)
        held = {n.replace(".default.", "."): p for n, p in wrapped.named_parameters() if ".lora_" in n}
        _refuse_other(held, adapter)
        return wrapped.merge_and_unload()
    except (PolicyError, MemoryError):
        raise
    except Exception as error:  # a library fails over odd files with whatever it stumbles on
        raise PolicyError(f"the adapter {adapter.folder} cannot be loaded{library_reason(error)}") from error


def proof_of_merged(held: Mapping[str, Tensor], adapter: Adapter) -> int:
    """Compare merged weights with base and adapter, computed anew from both files; return the number compared.

    What the adapter leaves alone must be the base's to the bit, the rest W + scale · B A but for rounding; ValueError
    names the first that is not.
    """
    adapted = {f"{module}.weight": module for module in adapter.factors}
    compared = verify_weights({name: tensor for name, tensor in held.items() if name not in adapted}, adapter.base)
    shapes = {name: tuple(held[name].shape) for name in adapted if name in held}
    chosen = fixed_set(adapter.base, shapes)
    for path in sorted(adapter.base.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in sorted(set(file.keys()) & set(chosen)):
                weight = file.get_tensor(name).to(held[name].dtype)
                if not _is_sum(held[name].cpu(), weight, adapter, adapted[name]):
                    raise ValueError(f"{name} is not the base's with what {adapter.folder} adds")
    return compared + len(chosen)


def _is_sum(held: Tensor, weight: Tensor, adapter: Adapter, module: str) -> bool:
    a, b = adapter.factors[module]
    expected = (weight.float() + adapter.scale(module) * (b.float() @ a.float())).to(held.dtype).float()
    off, change = (held.float() - expected).abs().mean(), (expected - weight.float()).abs().mean()
    return bool(off <= _SAME_FRAC * change)


def _config(path: Path) -> "LoraConfig":
    """An adapter's configuration as peft reads it: what this version of peft does not know is passed over.

    PolicyError if it changes the base or computes otherwise, though the matrices do not show it.
    """
    lora = peft().LoraConfig
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of keys that a later peft wrote
            found = lora.from_pretrained(str(path.parent))
    except Exception as error:  # noqa: BLE001 - a library fails over odd files with whatever it stumbles on
        raise PolicyError(f"{path} is not the configuration of an adapter{library_reason(error)}") from None
    if not isinstance(found, lora):
        raise PolicyError(f"{path} is not the configuration of an adapter that is supported: only LoRA is")
    variants = [field.name for field in fields(found) if field.metadata.get("is_lora_variant")]
    for name in (*variants, "layer_replication"):
        if getattr(found, name):
            raise PolicyError(f"{path} sets {name}, which is not supported: only plain LoRA of linear layers is")
    if (began := found.init_lora_weights) not in _BEGINNINGS:
        raise PolicyError(f"{path}: an adapter begun by {began} changes its base too; convert it to plain LoRA first")
    if not found.base_model_name_or_path:
        raise PolicyError(f"{path} lacks its base")
    return found


def refuse_variants(model: torch.nn.Module) -> None:
    """Raise PolicyError if a layer that peft has put into a model is another than plain LoRA of a linear layer."""
    lora, tuners = peft().tuners.lora, peft().tuners.tuners_utils
    plain = [lora.Linear, *(getattr(lora, name) for name in ("Linear4bit",) if hasattr(lora, name))]
    module: Any
    for name, module in model.named_modules():
        if isinstance(module, tuners.BaseTunerLayer):
            base = module.get_base_layer()
            if type(module) not in plain or not isinstance(base, Linear) or module.lora_variant:
                raise PolicyError(f"{name} is no linear layer under plain LoRA")


def refuse_unfit(model: PreTrainedModel, adapter: Adapter) -> None:
    """Raise PolicyError for layers that the base lacks or has in another shape, and for those of shared weights."""
    ends = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    layers = dict(model.named_modules())
    for module, (a, b) in adapter.factors.items():
        layer = layers.get(module)
        if id(layer) in ends:
            raise PolicyError(f"{adapter.folder} adapts {module}: embeddings and the output layer are not supported")
        shape = (layer.out_features, layer.in_features) if isinstance(layer, Linear) else None
        if shape != (b.shape[0], a.shape[1]):
            raise PolicyError(
                f"{adapter.folder} does not fit its base: it adapts {module} of shape {(b.shape[0], a.shape[1])}, "
                f"the base has {shape or 'no linear layer'} there"
            )


def _refuse_other(held: Mapping[str, Tensor], adapter: Adapter) -> None:
    """Refuse names that peft skipped: it passes over those that it does not expect, and warns of others."""
    given = {
        f"{PREFIX}{module}.lora_{side}.weight": tensor
        for module, pair in adapter.factors.items()
        for side, tensor in zip("AB", pair, strict=True)
    }
    odd = sorted(set(given) ^ set(held)) or sorted(n for n in given if not torch.equal(held[n], given[n].to(held[n])))
    if odd:
        raise PolicyError(f"{adapter.folder}: what it adapts and its file disagree on {odd[0]} ({len(odd)} matrices)")
