"""Which process a stage computes in, and with how many threads."""

import pytest

from tasks.config import RolloutConfig, UpdateConfig
from tasks.registry import stage_spec
from tasks.settings import worker_threads


@pytest.mark.parametrize(
    ("engine", "together", "apart"),
    [("transformers", "policy", "sampler"), ("openai", "policy", "sampler"), ("vllm", "engine", "engine")],
)
def test_sampling_leaves_the_process_that_learns_only_where_both_go_on_at_once(
    engine: str, together: str, apart: str
) -> None:
    rollout, settings = stage_spec("rollout"), RolloutConfig.model_validate({"engine": engine})
    assert (rollout.worker_for(settings), rollout.worker_for(settings, apart=True)) == (together, apart)
    assert stage_spec("update").worker_for(UpdateConfig(), apart=True) == "policy"


@pytest.mark.parametrize(("given", "alone", "each"), [("1", 1, 1), ("2", 2, 1), ("5", 5, 2), ("8", 8, 4)])
def test_two_busy_workers_share_the_threads_and_have_one_at_least(
    monkeypatch: pytest.MonkeyPatch, given: str, alone: int, each: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert (worker_threads(), worker_threads(2)) == (alone, each)
