"""What the tests have a real vLLM do, in the process that holds it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from stand_in_for_vllm import stand_ins

from gradus.models.engines.base import EngineError, Request
from gradus.models.engines.settings import VllmConfig
from gradus.models.engines.vllm import VllmEngine
from gradus.tasks.host.processes import Warm
from gradus.tasks.stages.rollout.engines import RunningVllm


def execute(job: dict[str, Any], warm: Warm, beat: Callable[..., None]) -> dict[str, Any]:
    """Do what the job says; an engine's error is part of the answer."""
    beat(0.0)
    running, settings = warm.of(RunningVllm), VllmConfig(enforce_eager=True, max_num_seqs=32)
    if not running:
        running[settings, "auto"] = VllmEngine(settings)
    (engine,) = running.values()
    try:
        return {"pid": os.getpid(), **_done(engine, job)}
    except EngineError as error:
        return {"pid": os.getpid(), "error": str(error), "hint": error.hint}


def is_core(process: psutil.Process) -> bool:
    """Whether this is a living engine core of vLLM."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and "EngineCore" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def kill(process: psutil.Process) -> int:
    """Kill a process and tell which it was."""
    process.kill()
    return process.pid


def _done(engine: VllmEngine, job: dict[str, Any]) -> dict[str, Any]:
    match job["do"]:
        case "load":
            engine.load(Path(job["folder"]))
        case "load_in_vain" | "load_under_the_number_of":
            _misled(engine, job)
        case "generate":
            tuples = ("prompt_tokens", "stop")
            asked = [Request(**{k: tuple(v) if k in tuples else v for k, v in r.items()}) for r in job["requests"]]
            told: list[int] = []
            found = sorted(engine.generate(asked, told.append), key=lambda done: done.index)
            rows = [[list(f.tokens), list(f.logprobs), f.finish_reason, f.error] for f in found]
            return {"rows": rows, "told": told, "name": engine.name}
        case "give_up":
            asked = [Request(str(i), (9, 12, 5), i, 60) for i in range(8)]
            next(iter(engine.generate(asked)))
        case "logprobs":
            rows = zip(job["prompts"], job["completions"], strict=True)
            return {"logprobs": [engine.logprobs(*row) for row in rows]}
        case "kill_core":
            return {"killed": [kill(child) for child in psutil.Process().children(recursive=True) if is_core(child)]}
        case "cores":
            return {"cores": [child.pid for child in psutil.Process().children(recursive=True) if is_core(child)]}
        case _:
            return stand_ins(job)
    return {}


def _misled(engine: VllmEngine, job: dict[str, Any]) -> None:
    """A load of which vLLM says that it was done, while it holds what it held before."""
    running, folder = engine._running, Path(job["folder"])
    assert running is not None
    if job["do"] == "load_under_the_number_of":
        running.numbers[folder] = running.numbers[Path(job["other"])]
        engine.load(folder)
        return
    ask = running.rpc

    def rpc(name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return [] if name == "reload_weights" else ask(name, *args, **kwargs)

    with mock.patch.object(running, "rpc", rpc):
        engine.load(folder)
