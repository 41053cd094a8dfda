"""A policy as the files that transformers loads."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.tensor import DTensor

from gradus.models.policy import Policy
from gradus.models.policy_files import CONFIG
from gradus.models.training.parallel import gathered

SavedDtype = Literal["float32", "bfloat16", "float16"]
"""Number formats that a policy can be saved in."""


def write_policy(
    policy: Policy,
    folder: Path | None,
    weights: Mapping[str, Tensor] | None = None,
    dtype: SavedDtype | None = None,
) -> None:
    """Write the files of a policy to an empty folder; OSError if a disk refuses.

    `weights` by parameter name stand for the model's own, and are rounded to `dtype`; None keeps the model's. If ranks
    hold parts of them all have to call this, those other than rank 0 with `folder` None.
    """
    model = policy.model
    given = dict(model.named_parameters()) if weights is None else weights
    other = None if dtype is None or getattr(torch, dtype) == model.dtype else dtype
    rounded: dict[int, Tensor] = {}  # by the identity of the parameters that they stand for
    for name, parameter in model.named_parameters():
        weight = given[name].detach().to(getattr(torch, other) if other else parameter.dtype)
        whole = gathered(weight, 0)
        if whole is not None:  # what ranks hold is gathered on the CPU of rank 0, nowhere else
            rounded[id(parameter)] = whole.cpu() if isinstance(weight, DTensor) else whole
    if folder is None:
        return
    # Tied weights have one name among the parameters and several in the state; they must stay one tensor.
    own: dict[str, Tensor] = model.state_dict(keep_vars=True)
    state = {name: rounded.get(id(value), value.detach()) for name, value in own.items()}
    try:
        model.save_pretrained(folder, state_dict=state, safe_serialization=True)
    except SafetensorError as error:
        raise OSError(str(error)) from None
    if other:
        _name_dtype(folder / CONFIG, other)
    policy.tokenizer.save_pretrained(folder)


def _name_dtype(path: Path, dtype: str) -> None:
    """Let a configuration, and the parts of it that name one, say this number format."""
    body = json.loads(path.read_bytes())
    for part in (body, *body.values()):
        if isinstance(part, dict) and "dtype" in part:
            part["dtype"] = dtype
    path.write_text(json.dumps(body, indent=2, sort_keys=True) + "\n")
