"""A stand-in for a running vLLM, for what no machine at hand can do, and no vLLM when asked: sleep, fail half-way."""

import contextlib
import queue
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from gradus.models.engines import vllm
from gradus.models.engines.base import EngineError
from gradus.models.engines.settings import VllmConfig
from gradus.models.engines.vllm import VllmEngine
from gradus.models.engines.vllm_core import Cores


def stand_ins(job: dict[str, Any]) -> dict[str, Any]:
    """Do what the job says with a stand-in."""
    if job["do"] == "sleeps":
        return sleeps(job["folders"], job["max_rank"])
    assert job["do"] == "load_in_pieces"
    return broken_load(Path(job["folder"]))


def broken_load(folder: Path) -> dict[str, Any]:
    """A running engine whose worker fails half-way through new weights, asked twice for them."""
    engine, told = VllmEngine(VllmConfig()), list[str]()

    def fail(name: str, **_arguments: Any) -> None:
        raise Exception(f"Call to {name} failed\ndetails")  # noqa: TRY002 - what vLLM raises

    for _ in range(2):
        engine._running = Cores(_stand_in(fail), Path("other"))
        try:
            engine.load(folder)
        except EngineError as error:
            told.append(str(error))
    return {"told": told, "holds": engine._running is not None}


def _stand_in(answer: Callable[..., Any]) -> Any:
    """What Cores asks of a vLLM with two copies; `answer` is told of every call, and of the copy that it goes to."""
    dead = SimpleNamespace(engine_dead=True)
    core = SimpleNamespace(core_engines=[0, 1], core_engine=0, resources=dead, utility_results={}, shutdown=list)
    core.outputs_queue = queue.SimpleQueue[Any]()
    names = ("sleep", "wake_up", "reset_prefix_cache", "add_lora", "add_request")
    calls = {name: lambda *args, name=name, **kw: answer(name, *args, copy=core.core_engine, **kw) for name in names}

    def rpc(name: str, args: Any, kwargs: Any) -> list[Any]:
        return [answer(name, *args, copy=core.core_engine, **kwargs)]

    return SimpleNamespace(engine_core=core, collective_rpc=rpc, **calls)


def sleeps(folders: list[str], max_rank: int) -> dict[str, Any]:
    """Every call that a vLLM with a sleep mode gets while policies are loaded and it sleeps in between."""
    calls: list[str] = []

    def answer(name: str, *args: Any, copy: int, **kwargs: Any) -> bool:
        shown = [Path(a).name if name == "reload_weights" else a for a in (*args, *kwargs.values())]
        calls.append(f"{copy} {name}" + "".join(f" {a}" for a in shown if name not in ("add_lora", "add_request")))
        return True

    engine = VllmEngine(VllmConfig(sleep=True))

    def started(base: Path, *_: Any) -> Cores:
        return Cores(_stand_in(answer), base, max_rank)

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(vllm, "can_sleep", return_value=True))
        patches.enter_context(mock.patch.object(Cores, "started", side_effect=started))
        proved = patches.enter_context(mock.patch.object(VllmEngine, "_prove"))
        proved.side_effect = lambda *_: calls.append("proved")
        for folder in folders:
            engine.load(Path(folder))
            engine._add(0, (1,), None, {})
            engine._add(0, (1,), None, {})
            engine.sleep()
        try:
            engine._add(0, (1,), None, {})
        except EngineError as error:
            calls.append(str(error))
    return {"calls": calls, "remarks": list(engine.remarks)}
