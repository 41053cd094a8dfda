"""Which process a stage computes in, and with how many threads."""

import os

import pytest

from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.settings import thread_settings, usable_cpus
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
    found = [thread_settings(num_busy)["OMP_NUM_THREADS"] for num_busy in (1, 2)]
    assert found == [str(alone), str(each)]


def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert thread_settings()["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert thread_settings()["OMP_WAIT_POLICY"] == "ACTIVE"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux alone has affinities")
def test_a_worker_has_a_thread_for_each_cpu_that_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert (usable_cpus(), thread_settings()["OMP_NUM_THREADS"]) == (1, "1")
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= usable_cpus() <= len(before)
