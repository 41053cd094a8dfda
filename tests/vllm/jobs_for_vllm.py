"""What the tests have a real vLLM do, in the process that holds it."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from models.engines.base import EngineError, Request
from models.engines.vllm import VllmEngine, VllmSettings


def execute(job: dict[str, Any], warm: dict[str, Any], beat: Callable[..., None]) -> dict[str, Any]:
    """Do what the job says; an engine's error is part of the answer."""
    beat(0.0)
    engine: VllmEngine = warm.setdefault("engine", VllmEngine(VllmSettings(enforce_eager=True, max_num_seqs=32)))
    try:
        return {"pid": os.getpid(), **_done(engine, job)}
    except EngineError as error:
        return {"pid": os.getpid(), "error": str(error), "hint": error.hint}


def _broken_load(folder: Path) -> dict[str, Any]:
    """A running engine whose worker fails half-way through new weights, asked twice for them."""
    engine, told = VllmEngine(VllmSettings()), list[str]()

    def fail(name: str, **_arguments: Any) -> None:
        raise Exception(f"Call to {name} failed\ndetails")  # noqa: TRY002 - what vLLM raises

    for _ in range(2):
        engine._engine = SimpleNamespace(collective_rpc=fail, engine_core=SimpleNamespace(shutdown=list))
        try:
            engine.load(folder)
        except EngineError as error:
            told.append(str(error))
    return {"told": told, "holds": engine._engine is not None}


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
        case "load_in_vain":
            ask = engine._engine.collective_rpc
            engine._engine.collective_rpc = lambda name, **kw: None if name == "reload_weights" else ask(name, **kw)
            try:
                engine.load(Path(job["folder"]))
            finally:
                if engine._engine is not None:
                    engine._engine.collective_rpc = ask
        case "load_in_pieces":
            return _broken_load(Path(job["folder"]))
        case "generate":
            asked = [Request(**{**r, "prompt_tokens": tuple(r["prompt_tokens"])}) for r in job["requests"]]
            told: list[int] = []
            found = sorted(engine.generate(asked, told.append), key=lambda done: done.index)
            rows = [[list(f.tokens), list(f.logprobs), f.finish_reason, f.error] for f in found]
            return {"rows": rows, "told": told, "name": engine.name}
        case "give_up":
            asked = [Request(str(i), (9, 12, 5), i, 60) for i in range(8)]
            next(iter(engine.generate(asked)))
        case "logprobs":
            return {"logprobs": engine.logprobs(job["prompts"], job["completions"])}
        case "kill_core":
            return {"killed": [kill(child) for child in psutil.Process().children(recursive=True) if is_core(child)]}
    return {}
