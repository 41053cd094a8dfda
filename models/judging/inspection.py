"""Modules of a user's reward, found by a judge process that loads it, looks ahead and ends.

    inspect(resolve("mine.py:f", {})).modules      # {"gradus_user_reward": Module(...), "helpers": Module(...)}

The process has the limits and the scrubbed environment of any judge. Left out: see gradus.models.rewards.imports.
"""

import time
from dataclasses import dataclass
from select import select

from gradus.models.judging.pool import START_LIMIT_S, JudgeStartError
from gradus.models.judging.process import JudgeProcess
from gradus.models.rewards import SAME_NAME, RewardSpec
from gradus.models.rewards.imports import Module


@dataclass(frozen=True)
class Inspection:
    """The user's own modules by name, the function's file among them, and the installed packages that they import."""

    modules: dict[str, Module]
    packages: tuple[str, ...]


def inspect(spec: RewardSpec) -> Inspection:
    """Load a user's function in a judge and list its modules; raise JudgeStartError if it does not load."""
    deadline = time.monotonic() + START_LIMIT_S
    judge = JudgeProcess(spec, item_timeout_s=START_LIMIT_S, deadline=deadline, inspect=True)
    modules: dict[str, Module] = {}
    packages: list[str] = []
    try:
        while True:
            if not select([judge.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise JudgeStartError(f"{spec.name} was not loaded within {START_LIMIT_S:.0f} s")
            messages, alive = judge.receive()
            for message in messages:
                if "fatal" in message:
                    raise JudgeStartError(str(message["fatal"]))
                if "module" in message:
                    add(modules, Module(**message["module"]))
                elif "package" in message:
                    packages.append(str(message["package"]))
                elif "ready" in message:
                    return Inspection(modules, tuple(packages))
            if not alive:
                judge.settle()
                raise JudgeStartError(f"the judge of {spec.name} ended while starting ({judge.end()})")
    finally:
        judge.end()


def add(modules: dict[str, Module], module: Module) -> None:
    """Enter a module under its name, or under name#2, name#3 ... where another content has that name already."""
    key, count = module.name, 1
    while key in modules and modules[key].sha256 != module.sha256:
        count += 1
        key = f"{module.name}{SAME_NAME}{count}"
    modules[key] = module
