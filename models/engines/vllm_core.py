"""A running vLLM: its engine and engine cores, one for each copy of the model, spoken to as one.

vLLM's synchronous client starts `data_parallel_size` cores and then talks to the first alone: requests go to the cores
in turns here, and whatever concerns weights, adapters, caches or sleep goes to each.
"""

import contextlib
import os
import threading
import time
from collections.abc import Generator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gradus.models.engines.base import EngineError
from gradus.models.engines.settings import CPU_CACHE_GIB, VllmConfig
from gradus.models.errors import first_line
from gradus.models.policy import Dtype, saved_dtype

AGAIN = "repeat the command: finished rollouts are kept"
_INSTALL = "pip install 'gradus[gpu]' on a GPU; the README says how the CPU build is installed"
_EXTENSION = "gradus.models.engines.vllm_worker.WeightChecker"
_WATCH_S = 0.5
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks of adapters that vLLM can be started for."""


class Cores:
    """A started vLLM and what it holds; EngineDeadError of vLLM where a core is gone."""

    def __init__(self, engine: Any, base: Path, max_rank: int = 0) -> None:
        self.base = base
        """Folder of the weights; of an adapter's base, where there is one."""
        self.max_rank = max_rank
        """Largest rank of an adapter that it takes; 0 where it was started without adapters."""
        self.folder: Path | None = None
        """Folder of the policy that it was proved to hold; None until then, and while it sleeps."""
        self.adapter: Any = None
        """The adapter that requests are made with, as vLLM's LoRARequest."""
        self.numbers: dict[Path, int] = {}
        """Number of each adapter by its folder: vLLM knows adapters by a number alone."""
        self.ends: tuple[int, ...] = ()
        self.asleep = False
        self._engine = engine
        self._turn = 0
        threading.Thread(target=_wake_at_death, args=(engine.engine_core,), daemon=True).start()

    @classmethod
    def started(cls, folder: Path, settings: VllmConfig, dtype: Dtype, rank: int) -> "Cores":
        """Start with the weights of a folder, for adapters of a rank (0 for none); raise EngineError on failure."""
        if rank > _RANKS[-1]:
            said = f"the adapter has rank {rank}; vLLM takes adapters up to rank {_RANKS[-1]}"
            raise EngineError(said, "sample with transformers")
        max_rank = next(limit for limit in (0, *_RANKS) if limit >= rank)
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(CPU_CACHE_GIB))
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        start, arguments = vllm("v1.engine.llm_engine").LLMEngine.from_engine_args, vllm("engine.arg_utils").EngineArgs
        try:
            return cls(start(arguments(**engine_arguments(folder, settings, dtype, max_rank))), folder, max_rank)
        except (RuntimeError, ValueError, OSError) as error:
            raise EngineError(f"vLLM did not start: {first_line(error)}", "see the worker's log") from None

    @property
    def num_copies(self) -> int:
        """Number of copies of the model; N consecutive requests go to one each."""
        return len(self._engine.engine_core.core_engines)

    def each(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of vLLM's engine for every copy; return their answers."""
        core, answers = self._engine.engine_core, list[Any]()
        for copy in core.core_engines:
            core.core_engine = copy
            answers.append(getattr(self._engine, name)(*args, **kwargs))
        return answers

    def rpc(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method in every worker of every copy; return their answers."""
        answers = self.each("collective_rpc", name, args=args, kwargs=kwargs)
        return [answer for copy in answers for answer in copy]

    def add(self, name: str, tokens: Sequence[int], params: Any, adapter: Any) -> None:
        """Queue a request with the copy whose turn it is."""
        names = self._engine.engine_core.core_engines
        self._engine.engine_core.core_engine = names[self._turn % len(names)]
        self._turn += 1
        self._engine.add_request(name, {"prompt_token_ids": list(tokens)}, params, lora_request=adapter)

    def step(self) -> list[Any]:
        """Wait for the next answers of any copy."""
        return self._engine.step()

    def shutdown(self) -> None:
        """End every core."""
        with contextlib.suppress(Exception):
            self._engine.engine_core.shutdown()


def engine_arguments(folder: Path, settings: VllmConfig, dtype: Dtype, max_rank: int) -> dict[str, Any]:
    """The arguments that vLLM is started with."""
    adapters = {"enable_lora": True, "max_lora_rank": max_rank} if max_rank else {}
    return {
        **adapters,
        "model": str(folder),
        "dtype": saved_dtype(folder) if dtype == "auto" else dtype,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "data_parallel_size": settings.data_parallel_size,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "max_num_seqs": settings.max_num_seqs,
        "max_model_len": settings.max_model_len or None,
        "enforce_eager": settings.enforce_eager,
        "enable_sleep_mode": settings.sleep and can_sleep(),
        "enable_prefix_caching": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        # On a CPU a prompt computed in pieces ends the core: it takes a seeded draw back.
        "enable_chunked_prefill": False if vllm("platforms").current_platform.is_cpu() else None,
        "worker_extension_cls": _EXTENSION,
        "disable_log_stats": True,
    }


def can_sleep() -> bool:
    """Return whether vLLM can free this machine's accelerator and stay; on a CPU it cannot."""
    return bool(vllm("platforms").current_platform.is_sleep_mode_available())


@contextlib.contextmanager
def plain_errors(what: str) -> Generator[None]:
    """Turn an error of a vLLM worker, a plain Exception, into an EngineError that begins with `what`."""
    try:
        yield
    except (EngineError, vllm("v1.engine.exceptions").EngineDeadError):
        raise
    except Exception as error:  # noqa: BLE001 - see above
        raise EngineError(f"{what}: {first_line(error)}", AGAIN) from None


def vllm(module: str) -> Any:
    """A module of vLLM, an extra that is imported when it is needed."""
    try:
        return import_module(f"vllm.{module}")
    except ImportError as error:
        raise EngineError(f"vLLM cannot be imported here: {error}", _INSTALL) from None


def _wake_at_death(core: Any) -> None:
    """Wake the callers of an engine core that is gone: vLLM 0.32 marks it dead, and they wait for ever."""
    while not core.resources.engine_dead:
        time.sleep(_WATCH_S)
    error = vllm("v1.engine.exceptions").EngineDeadError()
    core.outputs_queue.put_nowait(error)
    for future in list(core.utility_results.values()):
        if not future.done():
            future.set_exception(error)
