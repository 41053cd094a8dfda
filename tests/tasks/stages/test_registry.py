"""Which process a stage computes in, and with how many threads."""

import pytest

from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.settings import worker_threads
from gradus.tasks.runtime.stage_adapter import worker_of
from gradus.tasks.stages.registry import stage_spec


@pytest.mark.parametrize(
    ("engine", "together", "separate_sampler"),
    [("transformers", "policy", "sampler"), ("openai", "policy", "sampler"), ("vllm", "engine", "engine")],
)
def test_sampling_leaves_the_process_that_learns_only_where_both_go_on_at_once(
    engine: str, together: str, separate_sampler: str
) -> None:
    rollout, settings = stage_spec("rollout"), RolloutConfig.model_validate({"engine": engine})
    found = [worker_of(rollout, settings, separate_sampler=apart) for apart in (False, True)]
    assert found == [together, separate_sampler]
    assert worker_of(stage_spec("update"), UpdateConfig(), separate_sampler=True) == "policy"


@pytest.mark.parametrize(("given", "alone", "each"), [("1", 1, 1), ("2", 2, 1), ("5", 5, 2), ("8", 8, 4)])
def test_two_busy_workers_share_the_threads_and_have_one_at_least(
    monkeypatch: pytest.MonkeyPatch, given: str, alone: int, each: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert (worker_threads(), worker_threads(2)) == (alone, each)
