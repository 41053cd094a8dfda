"""vLLM inside the worker against `vllm serve` as its child, spoken to by the engine `openai`: start, speed, reload.

    python benchmarks/vllm_serve.py [--rows 1024] [--rounds 5]

Both hold the bundled policy in float32 and are asked the same in turns, round after round; a reload takes turns between
that policy and one whose weights were scaled, and ends with the proof: checksums of every tensor and the log-probs of a
probe. The server reloads by the endpoints of its development mode. Prints one table of medians, and what the server
answered to sleep and wake-up.
"""

import argparse
import contextlib
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import httpx
import psutil
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save_file

from gradus.models.engines.base import Engine, Request
from gradus.models.engines.server import ServerEngine
from gradus.models.engines.settings import ServerConfig, VllmConfig
from gradus.models.engines.vllm import VllmEngine
from gradus.models.engines.vllm_core import engine_arguments
from gradus.models.judging.process_tree import kill_tree
from gradus.models.policy import load_prompt_side
from gradus.models.weight_check import compare, fixed_set
from gradus.tasks.servers.processes import free_port

SAMPLES = Path(__file__).parents[1] / "data" / "samples"
POLICY = SAMPLES / "policy"
SETTINGS = VllmConfig(enforce_eager=True)
GROUP = 8
MAX_TOKENS = 96
START_LIMIT_S = 600.0


def scaled(folder: Path) -> Path:
    """The bundled policy with other weights."""
    shutil.copytree(POLICY, folder)
    file = folder / "model.safetensors"
    save_file({name: tensor * 1.01 for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    return folder


def requests(num_rows: int) -> list[Request]:
    """Groups of eight of the bundled problems."""
    tokenizer = load_prompt_side(POLICY).tokenizer
    questions = pq.read_table(SAMPLES / "train.parquet", columns=["question"]).column("question").to_pylist()
    prompts = [tuple(tokenizer.encode(f"{question}\n")) for question in questions]
    return [Request(str(i), prompts[i // GROUP % len(prompts)], seed=i, max_tokens=MAX_TOKENS) for i in range(num_rows)]


class Served:
    """A `vllm serve` of ours: reload by its development endpoints, then the same proof as the engine `vllm`."""

    def __init__(self, url: str, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.engine = ServerEngine(ServerConfig(url=f"{url}/v1", concurrency=SETTINGS.max_num_seqs))
        self._http = httpx.Client(base_url=url, timeout=START_LIMIT_S)

    def ask(self, path: str, **body: object) -> httpx.Response:
        """One request that must succeed."""
        return self._http.post(path, json=body).raise_for_status()

    def answer_to(self, path: str) -> str:
        """What the server answers to a request that may fail."""
        answer = self._http.post(path)
        return f"{answer.status_code} {answer.text[:200]}"

    def rpc(self, method: str, *args: object, **kwargs: object) -> list[object]:
        """Call a method in every worker."""
        answer = self.ask("/collective_rpc", method=method, args=args, kwargs=kwargs)
        return answer.json()["results"] if answer.content else []

    def load(self, folder: Path) -> None:
        """Reload in place, and prove it."""
        self.rpc("reload_weights", weights_path=str(folder))
        self.rpc("gradus_repack")
        self.ask("/reset_prefix_cache")
        (held,) = self.rpc("gradus_tensors")
        assert isinstance(held, dict)
        rows = fixed_set(folder, {name: shape for name, (_, shape) in held.items()})
        (sums,) = self.rpc("gradus_sums", rows)
        assert isinstance(sums, dict)
        compare(sums, {name: getattr(torch, held[name][0]) for name in rows}, folder)
        self.engine.load(folder)


@contextlib.contextmanager
def served(log_path: Path) -> Generator[Served]:
    """Start a server with the bundled policy and wait until it answers."""
    arguments = engine_arguments(POLICY, SETTINGS, "float32", 0)
    flags = ["--no-enable-chunked-prefill"] if not arguments["enable_chunked_prefill"] else []
    flags += ["--enforce-eager", "--dtype", arguments["dtype"], "--max-num-seqs", str(arguments["max_num_seqs"])]
    flags += ["--generation-config", "vllm", "--logprobs-mode", arguments["logprobs_mode"], "--disable-log-stats"]
    flags += ["--worker-extension-cls", arguments["worker_extension_cls"], "--served-model-name", "policy"]
    port = free_port(0)
    # What `vllm serve` runs; that command itself asks for a package called vllm, which the CPU build is not.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(POLICY), *flags]
    env = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with log_path.open("wb") as log:
        whole = [*command, "--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"]
        process = subprocess.Popen(whole, env=env, stdout=log, stderr=log, start_new_session=True)
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + START_LIMIT_S
    try:
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(log_path.read_text()[-3000:])
            time.sleep(0.1)
        yield Served(url, process)
    finally:
        kill_tree(process.pid)
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).is_success
    except httpx.HTTPError:
        return False


def seconds(act: Callable[[], object]) -> float:
    """Wall seconds of a call."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def speed(engine: Engine, asked: Sequence[Request]) -> float:
    """Tokens per second."""
    started, num_tokens = time.perf_counter(), 0
    for finished in engine.generate(asked):
        if finished.finish_reason == "error":
            sys.exit(finished.error)
        num_tokens += len(finished.tokens)
    return num_tokens / (time.perf_counter() - started)


def memory_mib(pid: int) -> float:
    """Memory that a process and its children do not share with others."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(process.memory_full_info().uss for process in family) / 2**20


def medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The median of each side."""
    return statistics.median(inside for inside, _ in pairs), statistics.median(child for _, child in pairs)


def measure(num_rows: int, rounds: int) -> list[tuple[str, float, float]]:
    """Each figure of the engine inside and of the server."""
    asked = requests(num_rows)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as running:
        other = scaled(Path(scratch) / "scaled")
        inside = VllmEngine(SETTINGS, "float32")
        start_inside = seconds(lambda: inside.load(POLICY))
        opened: list[Served] = []
        start_served = seconds(lambda: opened.append(running.enter_context(served(Path(scratch) / "log"))))
        (child,) = opened
        start_served += seconds(lambda: child.engine.load(POLICY))
        of_child = memory_mib(child.process.pid)
        of_inside = memory_mib(os.getpid()) - of_child
        speeds, reloads = list[tuple[float, float]](), list[tuple[float, float]]()
        for number in range(rounds + 1):
            found = speed(inside, asked), speed(child.engine, asked)
            folder = other if number % 2 == 0 else POLICY
            taken = seconds(lambda to=folder: inside.load(to)), seconds(lambda to=folder: child.load(to))
            if number:  # the first warms up
                speeds.append(found)
                reloads.append(taken)
        for path in ("/sleep?level=2", "/wake_up"):
            print(f"{path}: {child.answer_to(path)}")
        inside.close()
    return [
        ("start, with the proof (s)", start_inside, start_served),
        ("tokens/s", *medians(speeds)),
        ("ratio of tokens/s within a round", 1.0, statistics.median(s / i for i, s in speeds)),
        ("reload, with the proof (s)", *medians(reloads)),
        ("memory of their own (MiB)", of_inside, of_child),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    found = measure(given.rows, given.rounds)
    print(f"{platform.machine()}, {os.cpu_count()} cores, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', '-')}")
    print("| | in the worker | `vllm serve` as its child |\n|---|---|---|")
    for name, inside, child in found:
        print(f"| {name} | {inside:,.2f} | {child:,.2f} |")


if __name__ == "__main__":
    main()
