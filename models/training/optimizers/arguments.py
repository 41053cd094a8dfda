"""The optimisers that an update can have and the settings that each takes, read from source: torch is not imported.

Names: `adamw`, `adamw_8bit` (8-bit Optimizers via Block-wise Quantization, arXiv 2110.02861, by bitsandbytes), and the
classes of torch.optim. Left out: those that need more than dense gradients (LBFGS a closure, SparseAdam sparse ones).
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

OURS = {"adamw": ("torch", "AdamW"), "adamw_8bit": ("bitsandbytes", "AdamW8bit")}
"""Package and class of the names that are not those of torch.optim."""
SET_ELSEWHERE = ("lr", "betas", "weight_decay")
"""Arguments of optimisers that are settings of the update."""
_NOT_DENSE = {"LBFGS", "SparseAdam"}


class OptimizerError(ValueError):
    """An optimiser that there is not, or settings that it does not take; the sentence says which there are."""


def check_optimizer(name: str, settings: Collection[str], betas_set: bool = False, decay_set: bool = False) -> None:
    """Raise OptimizerError unless there is such an optimiser and its constructor takes these settings.

    `betas_set` and `decay_set` say whether the update asks for betas or weight decay of its own.
    """
    taken = arguments(name)
    own = [each for each in taken if each not in SET_ELSEWHERE]
    for setting in settings:
        if setting in SET_ELSEWHERE:
            raise OptimizerError(f"{setting} of {name} is a setting of the update: set update.{setting}")
        if setting not in own:
            raise OptimizerError(f"{name} has no setting {setting}; it has {', '.join(own)}")
    for setting, is_set in (("betas", betas_set), ("weight_decay", decay_set)):
        if is_set and setting not in taken:
            raise OptimizerError(f"{name} takes no {setting}: leave update.{setting} out")


def arguments(name: str) -> tuple[str, ...]:
    """What an optimiser's constructor takes beside the parameters; OptimizerError if there is none of that name."""
    package, wanted = OURS.get(name, ("torch", name))
    classes = _classes(package)
    if not classes:
        raise OptimizerError(f"the optimizer {name} needs the package {package}: pip install {package}")
    if wanted not in classes:
        known = [*OURS, *sorted(_classes("torch"))]
        raise OptimizerError(f"there is no optimizer {name}; there are {', '.join(known)}")
    return classes[wanted]


@cache
def _classes(package: str) -> Mapping[str, tuple[str, ...]]:
    """Arguments by class, of all optimisers of a package; none if it is not installed."""
    found = find_spec(package)
    if found is None:
        return {}
    folder = Path((found.submodule_search_locations or [""])[0]) / "optim"
    return dict(each for path in sorted(folder.glob("*.py")) for each in _of_file(path))


def _of_file(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in ast.parse(path.read_bytes()).body:
        if not isinstance(node, ast.ClassDef) or node.name in _NOT_DENSE:
            continue
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                names = [each.arg for each in (*part.args.args, *part.args.kwonlyargs)]
                if names[1:3] == ["params", "lr"]:
                    yield node.name, tuple(names[2:])
