"""Engine `openai` against a real `vllm serve` on loopback: tokens, log-probs, proof of weights, a server that dies."""

import contextlib
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gradus.data.lake.store import Ref, Store
from gradus.models.engines.base import EngineError, Request
from gradus.models.engines.hf import HfEngine
from gradus.models.engines.server import ServerEngine
from gradus.models.engines.settings import ServerConfig
from gradus.models.policy import load_policy
from gradus.models.processes.child import kill_tree
from tests.patience import quiet_port, until

BOUND = 2e-4
PROMPTS = [(9, 12, 5), (9, 12, 5), (10, 11), (9, 6, 13, 5, 8), (9, 12, 5)]
FLAGS = ["--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill", "--max-num-seqs", "16"]
FLAGS += ["--generation-config", "vllm", "--host", "127.0.0.1"]


def requests(**options: Any) -> list[Request]:
    given = {"max_tokens": 24, **options}
    return [Request(str(i), prompt, seed=i, **given) for i, prompt in enumerate(PROMPTS)]


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def serving(folder: Path, log_path: Path, *flags: str) -> Generator[tuple["subprocess.Popen[bytes]", str]]:
    """A real vLLM server with a policy: its process and address."""
    port = quiet_port()
    # What `vllm serve` runs; that command itself asks for a package called vllm, which the CPU build is not.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), *FLAGS, *flags]
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    with log_path.open("wb") as log:
        whole = [*command, "--port", str(port), "--served-model-name", "tiny"]
        process = subprocess.Popen(whole, env=env, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: process.poll() is not None or answers(url), 600, 0.5, lambda: log_path.read_text()[-3000:])
        assert process.poll() is None, log_path.read_text()[-3000:]
        yield process, f"{url}/v1"
    finally:
        kill_tree(process.pid)
        process.wait()


def test_a_real_server_samples_as_the_policy_does_proves_it_has_adapters_by_name_and_its_end_is_told(
    store: Store, policies: list[Ref], adapters: list[Ref], check_logprobs: Any, tmp_path: Path
) -> None:
    folder, adapter = store.path(policies[0]), store.path(adapters[0])
    flags = ["--logprobs-mode", "processed_logprobs", "--enable-lora", "--max-lora-rank", "8"]
    with serving(folder, tmp_path / "log", *flags, "--lora-modules", f"adapter={adapter}") as (process, url):
        _serves_an_adapter_by_its_name(url, adapter)
        _holds_to_the_policy(url, store, policies, check_logprobs)
        engine = ServerEngine(ServerConfig(url=url, model="tiny", retries=1))
        engine.load(folder)
        kill_tree(process.pid)
        process.wait()
        with pytest.raises(EngineError, match="does not answer") as gone:
            list(engine.generate(requests()))
    assert "finished rollouts are kept" in gone.value.hint


def _serves_an_adapter_by_its_name(url: str, adapter: Path) -> None:
    named = ServerEngine(ServerConfig(url=url, model="adapter"))
    named.load(adapter)
    assert named.name.startswith("openai adapter@127.0.0.1:")
    greedy = {f.index: list(f.tokens) for f in named.generate(requests(temperature=0.0))}
    assert greedy == {f.index: f.tokens for f in HfEngine(load_policy(adapter)).generate(requests(temperature=0.0))}
    with pytest.raises(EngineError, match="holds other weights") as refused:
        ServerEngine(ServerConfig(url=url, model="tiny")).load(adapter)
    assert "name an adapter by its name there with server.model" in refused.value.hint
    with pytest.raises(EngineError, match="has no model ''; it has tiny, adapter"):
        ServerEngine(ServerConfig(url=url)).load(adapter)


def _holds_to_the_policy(url: str, store: Store, policies: list[Ref], check_logprobs: Any) -> None:
    folder = store.path(policies[0])
    policy = load_policy(folder)
    engine = ServerEngine(ServerConfig(url=url, model="tiny", concurrency=4, retries=1))
    engine.load(folder)
    assert engine.name.startswith("openai tiny@127.0.0.1:")
    greedy = {f.index: list(f.tokens) for f in engine.generate(requests(temperature=0.0))}
    assert greedy == {f.index: f.tokens for f in HfEngine(policy).generate(requests(temperature=0.0))}
    for options in ({}, {"temperature": 0.7, "top_p": 0.9, "top_k": 6}):
        asked = requests(**options)
        for finished in engine.generate(asked):
            assert finished.finish_reason in ("stop", "length")
            given = asked[finished.index]
            check_logprobs(policy, given, list(finished.tokens), list(finished.logprobs), BOUND)
    too_long = list(engine.generate([Request("a", (9,) * 500, 1, 8)]))
    assert (too_long[0].finish_reason, "400" in too_long[0].error) == ("error", True)

    with pytest.raises(EngineError, match="holds other weights"):
        ServerEngine(ServerConfig(url=url, model="tiny")).load(store.path(policies[1]))
