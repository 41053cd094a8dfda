"""What stage update refuses, by name: gates, rows that do not join, settings and checkpoints that do not fit."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import BadInputError, CorruptArtifactError, GateError, GradusError, StageError
from gradus.models.policy import new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer

House = Any
Case = tuple[type[GradusError], str, Callable[[House], Any]]
FAILURES: dict[str, Case] = {
    "another policy": (
        GateError, "12 of 12 rollouts were sampled from another policy .*a@r1h0:0 from .*roll out with this policy",
        lambda h: h.update(h.rows(h.other), h.rewards),
    ),
    "no policy named": (
        GateError, "1 of 12 rollouts .*from an unnamed one",
        lambda h: h.update([{**r, "policy": r["policy"] if i else None} for i, r in enumerate(h.rows())], h.rewards),
    ),
    "other log-probs than the policy's": (
        GateError, r"sampler and trainer disagree by \d+\.\d+ nats.*most in rollout a@r1h0:0",
        lambda h: h.update(h.rows(logprobs=[-90.0, -90.0]), h.rewards),
    ),
    "no finite log-prob": (
        StageError, "no token whose log-probs are all finite",
        lambda h: h.update([{**r, "logprobs": [None] * len(r["logprobs"])} for r in h.rows()], h.rewards),
    ),
    "all groups constant": (
        GateError, "all 3 groups .*nothing to learn", lambda h: h.update(h.rows(), [1.0] * 4 + [0.0] * 8),
    ),
    "too many constant groups": (
        GateError, r"1 of 3 groups \(33.3%\).*first: that of c@r1h0:0",
        lambda h: h.update(h.rows(), h.rewards, max_zero_std_frac=0.2),
    ),
    "nothing judged": (
        GateError, "no rollout has a reward: all 12", lambda h: h.update(h.rows(), [None] * 12),
    ),
    "a reward that is not finite": (
        BadInputError, r"rollout a@r1h0:1 has a reward that is not finite \(and 1 more\)",
        lambda h: h.update(h.rows(), [1, math.nan, math.inf, *h.rewards[3:]]),
    ),
    "no prompt tokens": (
        BadInputError, "rollout a@r1h0:0 has no prompt_tokens",
        lambda h: h.update(h.rows(prompt_tokens=None), h.rewards),
    ),
    "an empty prompt": (
        BadInputError, "rollout a@r1h0:0 has an empty prompt", lambda h: h.update(h.rows(prompt_tokens=[]), h.rewards),
    ),
    "no log-probs": (
        BadInputError, "rollout a@r1h0:0 has no logprobs", lambda h: h.update(h.rows(logprobs=None), h.rewards),
    ),
    "too few log-probs": (
        BadInputError, "rollout a@r1h0:0 has not one log-prob for each",
        lambda h: h.update(h.rows(logprobs=[-1.0]), h.rewards),
    ),
    "tokens of another tokenizer": (
        BadInputError, "rollout a@r1h0:0 has completion_tokens that the policy does not know",
        lambda h: h.update(h.rows(completion_tokens=[9, 23]), h.rewards),
    ),
    "a token that is null": (
        BadInputError, "rollout a@r1h0:0 has prompt_tokens that the policy does not know",
        lambda h: h.update(h.rows(prompt_tokens=[9, None]), h.rewards),
    ),
    "a KL without its reference": (
        BadInputError, "the objective needs a reference policy", lambda h: h.update(h.rows(), h.rewards, kl_coef=0.1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILURES.values(), ids=list(FAILURES))
def test_what_must_not_be_learnt_from_is_refused_by_name(house: House, case: Case) -> None:
    kind, message, update = case
    with pytest.raises(kind, match=message):
        update(house)
    assert not [
        p for p in (house.store.root / "checkpoints").glob("*/_manifest.json") if p.parent.name.startswith("0000")
    ]


def test_rows_given_twice_or_never_scored_are_named(house: House) -> None:
    rows = house.rows()
    rollouts, scores = house.put(rows), house.score(rows, house.rewards)
    more = house.score(rows, [0.0] * 12)
    fewer = house.score(rows[:5], house.rewards[:5])
    for inputs, message in (
        ({"rollouts": [rollouts, rollouts], "scores": [scores]}, "rollout a@r1h0:0 is given twice"),
        ({"rollouts": [rollouts], "scores": [scores, more]}, "score of rollout .* is given twice"),
        ({"rollouts": [rollouts], "scores": [fewer]}, "rollout b@r1h0:1 has no score"),
    ):
        with pytest.raises(BadInputError, match=message):
            house.run(house.job({**inputs, "policy": [house.policy]}))


def test_fixed_length_needs_its_length() -> None:
    from gradus.tasks.config.learning import UpdateConfig

    with pytest.raises(ValueError, match=r"aggregation\.length_tokens\n  Field required"):
        UpdateConfig.model_validate({"aggregation": "fixed_length"})
    settled = UpdateConfig.model_validate({"aggregation": {"name": "fixed_length", "length_tokens": 96}})
    assert settled.aggregation.settings == {"length_tokens": 96}


def test_a_checkpoint_whose_state_does_not_fit_is_refused(house: House, tmp_path: Path) -> None:
    folder = tmp_path / "strange"
    made = new_policy(tiny_tokenizer(), width=32, layers=1, heads=2, max_positions=64, seed=0)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    (folder / "state.json").write_text('{"step": 3}')
    house.policy = house.store.adopt(folder)
    with pytest.raises(CorruptArtifactError, match="is not a checkpoint that this version can go on from"):
        house.update(house.rows(), house.rewards)
