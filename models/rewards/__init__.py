"""Rewards: `(row, gold, max_chars, *, settings) -> Verdict`, and how a name becomes something a judge process can load.

resolve("numeric", {}).needs_gold       # True
resolve("mine.py:by_length", {})        # a user's function, which takes batches (gradus.models.rewards.user)
"""

import contextlib
import hashlib
import importlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gradus.components.description import Component, DescriptionError
from gradus.components.registry import find, is_users, users_file
from gradus.models.rewards.base import Row, Verdict

JudgeRow = Callable[[Row, str], Verdict]


@dataclass(frozen=True)
class RewardSpec:
    """A reward with its settings: all that a judge process receives."""

    name: str
    settings: dict[str, object] = field(default_factory=dict)
    max_chars: int = 0
    """Longer completions are judged by their last characters; 0 for any length. A user's function sees all of them."""
    module: str = ""
    """Module of a reward of ours or of an installed package."""
    attribute: str = ""
    """Its function there."""
    version: str = ""
    needs_gold: bool = False
    """True if a row without a gold answer cannot be judged."""
    decides: bool = False
    """True if it says whether an answer is correct, though it needs no gold answer."""
    sandbox: bool = False
    """True if it runs programs."""
    columns: tuple[str, ...] = ()
    """Columns that it reads beside completion and answer; a function that takes batches is shown them all."""
    path: str = ""
    function: str = ""
    sha256: str = ""
    modules: dict[str, str] = field(default_factory=dict)
    """Name -> SHA-256 of every other module of the user's that the function's file leads to."""
    variables: Sequence[str] = ()
    """Names of the environment variables that its process sees beside the usual ones; never their values."""
    isolated: bool = False
    """True if its process runs in the sandbox."""

    @property
    def is_user(self) -> bool:
        """Return whether it is a user's function or an installed package's: those take whole batches."""
        return not self.module.startswith("gradus.")

    @property
    def judges_correctness(self) -> bool:
        """Return whether its 1 and 0 mean right and wrong (a user's function: see gradus.models.rewards.combine)."""
        return (self.needs_gold or self.decides) and not self.is_user

    @property
    def verifier(self) -> str:
        """name@version, as in the column `verifier`; a user's function is versioned by its modules' digest."""
        if self.path:
            return f"{Path(self.path).name}:{self.function}@{self._digest[:12] or 'unversioned'}"
        return f"{self.name}@{self.version}"

    @property
    def _digest(self) -> str:
        """Digest of the user's own modules; of the function's file alone where there are no others."""
        if not self.modules:
            return self.sha256
        text = json.dumps([self.sha256, self.modules], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, object]:
        """Return the request for the judge process."""
        return asdict(self)


def resolve(
    name: str,
    settings: Mapping[str, object],
    *,
    sha256: str = "",
    modules: Mapping[str, str] | None = None,
    variables: Sequence[str] = (),
    isolated: bool = False,
    max_chars: int = 0,
) -> RewardSpec:
    """Return the reward of a name; ValueError if there is none, or it does not take these settings."""
    try:
        component = find("reward", name)
        checked = dict(component.settings(**settings))
    except DescriptionError:
        if not is_users(name):
            raise
        component, checked = None, dict(settings)
    if component is None or not component.module:
        path, function = users_file(name)
        return RewardSpec(
            name,
            checked,
            path=str(path),
            function=function,
            sha256=sha256,
            modules=dict(modules or {}),
            variables=variables,
            isolated=isolated,
        )
    return RewardSpec(
        name,
        checked,
        max_chars,
        module=component.module,
        attribute=component.function,
        version=_version(component),
        needs_gold=component.needs_gold,
        decides=component.decides,
        sandbox=component.sandbox,
        columns=component.columns,
        variables=variables,
        isolated=isolated or component.isolated,
    )


def load(spec: RewardSpec) -> JudgeRow:
    """The judging function of a reward of ours; imports its module (for math: SymPy, about a second)."""
    module = importlib.import_module(spec.module)
    if hasattr(module, "warm_up"):
        module.warm_up()
    function: Callable[..., Verdict] = getattr(module, spec.attribute)
    return lambda row, gold: function(row, gold, spec.max_chars, **spec.settings)


def versions(component: Component) -> dict[str, str]:
    """Return the version of each library of a component; "" for one that is not installed."""
    found = dict.fromkeys(component.libraries, "")
    for name in found:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _version(component: Component) -> str:
    if component.distribution:
        return f"{component.distribution}-{importlib.metadata.version(component.distribution)}"
    libraries = [f"{name}-{version}" for name, version in versions(component).items()]
    return "+".join([str(component.version), *libraries])
