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


@pytest.mark.parametrize(("top_p", "top_k"), [(0.5, 0), (0.8, 5)])
def test_truncated_rollouts_are_corrected_where_the_trainers_side_is_cut_likewise(
    house: House, top_p: float, top_k: int
) -> None:
    inputs, _ = truncated_rows(house, house.policy, top_p, top_k)
    for correction, steps in (("none", {}), ("token_truncated", house.steps), ("sequence_masked", {})):
        _, report = house.run(house.job(inputs, truncation="masked", correction=correction, **steps))
        assert report["metrics"]["mismatch/logp_diff_max"] < 1e-4
        assert report["metrics"]["mismatch/outside_frac"] == 0
        assert report["metrics"].get("policy/correction_mean", 1.0) == pytest.approx(1.0, abs=1e-3)
    # Refused, which is the default, compares with the full softmax: off by the mass that was cut.
    with pytest.raises(BadInputError, match="no correction holds") as refused:
        house.run(house.job(inputs, correction="token_truncated"))
    assert "update with truncation = masked" in refused.value.hint
    with pytest.raises(GateError, match="sampler and trainer disagree") as gate:
        house.run(house.job(inputs, max_logp_diff=0.1))
    assert "sampled with top_p or top_k: update with truncation = masked" in gate.value.hint


def test_tokens_that_the_policy_would_have_cut_off_are_counted_and_bounded(house: House) -> None:
    inputs, rows = truncated_rows(house, house.other, 1.0, 3)
    settings = {"truncation": "masked", "correction": "token_masked", "max_logp_diff": 9.0}
    with pytest.raises(GateError, match=r"\d\d\.\d% of the sampled tokens lie outside .*most in rollout [abc]@r1h0:\d"):
        house.run(house.job(inputs, **settings))
    _, report = house.run(house.job(inputs, **settings, max_outside_frac=1.0))
    model = load_policy(house.store.path(house.policy), "float32").model
    outside = 0
    for row in rows:
        ids = torch.tensor([[*row["prompt_tokens"], *row["completion_tokens"]]])
        with torch.no_grad():
            best = model(ids).logits[0, len(row["prompt_tokens"]) - 1 : -1].topk(3).indices.tolist()
        outside += sum(token not in top for token, top in zip(row["completion_tokens"], best, strict=True))
    num_tokens = sum(len(row["completion_tokens"]) for row in rows)
    assert report["metrics"]["mismatch/outside_frac"] == pytest.approx(outside / num_tokens)
    assert report["metrics"]["policy/correction_cut_frac"] >= outside / num_tokens > 0.1


def test_rows_without_truncation_are_masked_by_nothing(house: House) -> None:
    plain, _ = house.update(house.rows(), house.rewards, correction="token_truncated")
    masked, report = house.update(house.rows(), house.rewards, correction="token_truncated", truncation="masked")
    assert house.same_files(plain, masked)
    assert "mismatch/outside_frac" not in report["metrics"]
