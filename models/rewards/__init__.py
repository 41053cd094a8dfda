"""The rewards by name, and how a name becomes something that a judge process can load.

reward("numeric").needs_gold            # True
resolve("mine.py:by_length", {})        # a user's function
"""

import hashlib
import importlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from gradus.models.rewards.base import RewardSettings, Row, Verdict

JudgeRow = Callable[[Row, str, RewardSettings], Verdict]

USER_MODULE = "gradus_user_reward"
"""The module name under which the file of a user's function is loaded."""

SAME_NAME = "#"
"""Several modules may bear one name (plugins loaded from paths): the second is called name#2, and so on."""


@dataclass(frozen=True)
class Reward:
    """One registered reward: which module judges and what it may be given."""

    name: str
    module: str
    doc: str
    needs_gold: bool
    settings: frozenset[str] = frozenset()
    version: str = "1"
    distribution: str = ""
    columns: tuple[str, ...] = ()
    """Columns of a row that it reads beside completion and answer."""


REWARDS: Mapping[str, Reward] = {
    r.name: r
    for r in (
        Reward(
            "math",
            "gradus.models.rewards.symbolic",
            "mathematical equality, by Math-Verify",
            True,
            distribution="math-verify",
        ),
        Reward("numeric", "gradus.models.rewards.numeric", "one plain number, compared exactly", True),
        Reward("exact", "gradus.models.rewards.exact", "the normalised answer string", True),
        Reward(
            "choice",
            "gradus.models.rewards.choice",
            "the letter of a multiple-choice question",
            True,
            columns=("options", "choices", "extra"),
        ),
        Reward(
            "format",
            "gradus.models.rewards.pattern",
            "the answer is marked, or `pattern` occurs",
            False,
            frozenset({"pattern"}),
        ),
    )
}


class UnknownRewardError(ValueError):
    """No reward has this name, or it does not take this setting."""


@dataclass(frozen=True)
class RewardSpec:
    """A reward with its settings: all that a judge process is told."""

    name: str
    settings: dict[str, str | float | int | bool] = field(default_factory=dict)
    path: str = ""
    function: str = ""
    sha256: str = ""
    modules: dict[str, str] = field(default_factory=dict)
    """Name -> SHA-256 of every other module of the user's that the function's file leads to."""

    @property
    def is_user(self) -> bool:
        """Whether it is a user's function, which takes whole batches."""
        return bool(self.path)

    @property
    def needs_gold(self) -> bool:
        """Whether a row without a gold answer cannot be judged."""
        return not self.is_user and REWARDS[self.name].needs_gold

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that a registered reward reads beside completion and answer; a user's function is shown them all."""
        return () if self.is_user else REWARDS[self.name].columns

    @property
    def judges_correctness(self) -> bool:
        """Whether its 1 and 0 mean right and wrong (a user's function: see gradus.models.rewards.combine)."""
        return self.needs_gold

    @property
    def verifier(self) -> str:
        """name@version, as in the column `verifier`; a user's function is versioned by its modules' digest."""
        if self.is_user:
            return f"{Path(self.path).name}:{self.function}@{self._digest[:12] or 'unversioned'}"
        entry = REWARDS[self.name]
        return f"{self.name}@{_version(entry)}"

    def names(self, module: str) -> bool:
        """Whether a user's module is among those of this reward, with whatever content."""
        return any(module == key.partition(SAME_NAME)[0] for key in (USER_MODULE, *self.modules))

    def has_pinned(self, module: str, sha256: str) -> bool:
        """Whether a user's module is among those of this reward with this content."""
        pinned = {USER_MODULE: self.sha256, **self.modules}
        return any(module == key.partition(SAME_NAME)[0] and sha256 == found for key, found in pinned.items())

    @property
    def _digest(self) -> str:
        """Digest of the user's own modules; of the function's file alone where there are no others."""
        if not self.modules:
            return self.sha256
        text = json.dumps([self.sha256, self.modules], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """What goes to the judge process."""
        return asdict(self)


def resolve(
    name: str,
    settings: Mapping[str, str | float | int | bool],
    *,
    sha256: str = "",
    modules: Mapping[str, str] | None = None,
    max_chars: int = 0,
) -> RewardSpec:
    """The reward of a name, settings checked; UnknownRewardError says what there is instead."""
    path, separator, function = name.rpartition(":")
    if separator and path.endswith(".py"):
        if settings:
            raise UnknownRewardError(f"{name} is a function of yours and takes no settings")
        file = str(Path(path).expanduser().resolve())
        return RewardSpec(name, path=file, function=function, sha256=sha256, modules=dict(modules or {}))
    if name not in REWARDS:
        raise UnknownRewardError(
            f"there is no reward {name!r}: choose {', '.join(REWARDS)} or path/to/file.py:function"
        )
    unknown = sorted(set(settings) - REWARDS[name].settings)
    if unknown:
        raise UnknownRewardError(f"the reward {name} has no setting {unknown[0]!r}")
    _check_pattern(settings.get("pattern", ""))
    return RewardSpec(name, settings={**settings, "max_chars": max_chars})


def load(name: str) -> JudgeRow:
    """The judging function of a registered reward; imports its module (for math: SymPy, about a second)."""
    module = importlib.import_module(REWARDS[name].module)
    if hasattr(module, "warm_up"):
        module.warm_up()
    return cast("JudgeRow", module.judge)


def _check_pattern(pattern: object) -> None:
    try:
        re.compile(str(pattern))
    except re.error as error:
        raise UnknownRewardError(f"the pattern {pattern!r} is not a regular expression: {error}") from error


def _version(entry: Reward) -> str:
    if not entry.distribution:
        return entry.version
    return f"{entry.version}+{entry.distribution}-{importlib.metadata.version(entry.distribution)}"
