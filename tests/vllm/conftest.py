"""A real vLLM (its CPU build) in a worker process, and two tiny policies; skipped, with the reason, without vLLM."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradus.data.lake.store import Ref, Store
from gradus.models.policy import load_policy, new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.runtime.supervise import Limits, WorkerPool

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
LIMITS = Limits(wall_s=280, silence_s=280, start_s=120)

Do = Callable[..., dict[str, Any]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = "vLLM is not installed (its CPU build wants AVX-512 on x86-64 Linux; `make test` installs it there)"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))
            if importlib.util.find_spec("vllm") is None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("vllm") / "lake")


@pytest.fixture(scope="session")
def policies(store: Store, tmp_path_factory: pytest.TempPathFactory) -> list[Ref]:
    """Two policies of one shape and different weights, heads of a width that vLLM's CPU attention takes."""
    found: list[Ref] = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp(f"policy{seed}")
        policy = new_policy(tiny_tokenizer(), width=64, layers=2, heads=2, max_positions=128, seed=seed)
        policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        found.append(store.adopt(folder))
    return found


@pytest.fixture(scope="session")
def adapters(
    store: Store, policies: list[Ref], make_adapter: Any, tmp_path_factory: pytest.TempPathFactory
) -> list[Ref]:
    """Three adapters of the first policy, of different weights, ranks and scales."""
    root, policy = tmp_path_factory.mktemp("adapters"), load_policy(store.path(policies[0]))
    ranks = {"first": 4, "second": 8, "third": 2}
    made = [
        make_adapter(root / name, policy, str(policies[0]), seed=seed, rank=rank, use_rslora=name == "third")
        for seed, (name, rank) in enumerate(ranks.items())
    ]
    return [resolve_artifact(store, str(folder), "checkpoints") for folder in made]


def environment(**extra: str) -> dict[str, str]:
    path = os.pathsep.join([str(HERE), str(ROOT / "src")])
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", **extra}


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Do]:
    """A function that has the engine do things in its process; see jobs_for_vllm."""
    logs = tmp_path_factory.mktemp("engine")
    with WorkerPool(logs, environment(), execute="jobs_for_vllm:execute") as pool:

        def do(what: str, **arguments: Any) -> dict[str, Any]:
            return pool.run("engine", {"stage": "t", "do": what, **arguments}, LIMITS, lambda _frac, _text: None)

        yield do
