"""Stage update on rollouts of another distribution than the policy's: older ones, and truncated ones."""

from typing import Any

import pytest
import torch

from gradus.data.errors import BadInputError, GateError
from gradus.data.lake.store import Ref
from gradus.models.engines.base import Request
from gradus.models.engines.hf import HfEngine
from gradus.models.policy import load_policy

House = Any
Row = dict[str, Any]


def test_stored_rollouts_of_an_earlier_policy_are_learnt_from_if_allowed_and_their_age_is_told(house: House) -> None:
    folder, _ = house.update(house.rows(), house.rewards, lr=1e-3)
    newer = Ref("checkpoints", folder.name)
    old, fresh = house.rows(), house.rows(newer, problems="xyz")

    def update(rows: list[Row], rewards: list[float | None], **config: Any) -> dict[str, Any]:
        inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, rewards)], "policy": [newer]}
        return house.run(house.job(inputs, **config))[1]

    with pytest.raises(
        GateError, match=r"12 of 24 rollouts .* than the one being updated .*allow older ones with max_age"
    ):
        update([*old, *fresh], [*house.rewards, *house.rewards])
    for rows in (old, [*old, *fresh]):
        rewards = house.rewards * (len(rows) // 12)
        report = update(rows, rewards, max_age=1, correction={"name": "token_truncated", "cap": 2.0})
        assert report["metrics"]["data/age_max"] == 1
        assert report["metrics"]["data/age_mean"] == pytest.approx(12 / len(rows))
        assert 0 < report["metrics"]["policy/correction_mean"] != 1
        assert report["metrics"]["policy/correction_max"] <= 2.0
    with pytest.raises(GateError, match="than the one being updated and the 1 before it"):
        update([*house.rows(house.other), *fresh], [*house.rewards, *house.rewards], max_age=5)


def test_a_correction_of_the_policys_own_rollouts_changes_nothing_beyond_rounding(house: House) -> None:
    plain, _ = house.update(house.rows(), house.rewards, warmup_steps=0)
    for how in ("token_truncated", "sequence_masked"):
        corrected, report = house.update(house.rows(), house.rewards, warmup_steps=0, correction=how)
        assert report["metrics"]["policy/correction_mean"] == pytest.approx(1.0, abs=1e-5)
        assert report["metrics"]["policy/correction_cut_frac"] == 0
        for name, weight in house.weights(plain).items():
            assert torch.allclose(weight, house.weights(corrected)[name], atol=1e-6)


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 5}])
def test_no_correction_is_taken_of_a_truncated_distribution(house: House, cut: dict[str, float]) -> None:
    rows = house.rows()
    inputs = {"rollouts": [house.put(rows, **cut)], "scores": [house.score(rows, house.rewards)]}
    job = house.job({**inputs, "policy": [house.policy]}, correction="token_masked")
    with pytest.raises(BadInputError, match=r"a@r1h0:0 was sampled with top_p or top_k, where no correction holds"):
        house.run(job)
    house.run(house.job({**inputs, "policy": [house.policy]}))


def truncated_rows(house: House, sampler: Ref, top_p: float, top_k: int) -> tuple[dict[str, list[Ref]], list[Row]]:
    """The house's rollouts drawn anew by the engine, with top-p and top-k; `sampler` draws what the policy signs."""
    rows = house.rows()
    asked = [
        Request(r["rollout_id"], tuple(r["prompt_tokens"]), seed=i, max_tokens=6, top_p=top_p, top_k=top_k)
        for i, r in enumerate(rows)
    ]
    for done in HfEngine(load_policy(house.store.path(sampler), "float32")).generate(asked):
        rows[done.index].update(completion_tokens=list(done.tokens), logprobs=list(done.logprobs))
    inputs = {"rollouts": [house.put(rows, top_p=top_p, top_k=top_k)], "scores": [house.score(rows, house.rewards)]}
    return {**inputs, "policy": [house.policy]}, rows


def test_the_gate_says_that_truncated_rows_are_not_compared_with_what_the_sampler_recorded(house: House) -> None:
    inputs, _ = truncated_rows(house, house.policy, 0.5, 0)
    with pytest.raises(GateError, match="sampler and trainer disagree") as gate:
        house.run(house.job(inputs, max_logp_diff=0.1))
    assert "sampled with top_p or top_k" in gate.value.hint
