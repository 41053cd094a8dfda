"""What stage update refuses, by name: gates, rows that do not join, settings and checkpoints that do not fit."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save, save_file

from gradus.data.errors import BadInputError, CorruptArtifactError, GateError, GradusError, StageError
from gradus.data.lake.store import Ref
from tests.tasks.stages.update.conftest import replace_state, state_folder

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
    "text alone": (
        BadInputError, r"1 of 12 rollouts have text alone \(first: a@r1h0:0\).*reads prompt_tokens, completion_tokens",
        lambda h: h.update(h.rows(prompt_tokens=None, completion_tokens=None, logprobs=None, policy=None), h.rewards),
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


def remade(house: House, folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Ref:
    """The house's policy with another configuration or other tensors, as a user's folder."""
    folder.mkdir()
    for path in house.store.path(house.policy).iterdir():
        if not path.name.startswith("_"):
            (folder / path.name).write_bytes(path.read_bytes())
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return house.store.adopt(folder)


KEY = "model.layers.0.self_attn.q_proj.bias"
MISFITS: dict[str, tuple[str, Callable[[dict[str, Any], dict[str, Any]], Any]]] = {
    "a weight is missing": (f"1 of them, first {KEY} is missing", lambda _config, tensors: tensors.pop(KEY)),
    "a weight is too many": (
        "4 of them, first model.layers.0.self_attn.k_proj.bias is too many",
        lambda config, _tensors: config.update(attention_bias=False),
    ),
    "a layer is too many": (
        "1 of them, first model.layers.1.mlp.up_proj.weight is too many",
        lambda _config, tensors: tensors.update(
            {"model.layers.1.mlp.up_proj.weight": tensors["model.norm.weight"] + 0}
        ),
    ),
    "another width": (
        "3 of them, first model.layers.0.mlp.down_proj.weight has another shape",
        lambda config, _tensors: config.update(intermediate_size=48),
    ),
}


@pytest.mark.parametrize("case", MISFITS.values(), ids=list(MISFITS))
def test_weights_of_another_architecture_are_refused_by_name(house: House, tmp_path: Path, case: Any) -> None:
    message, change = case
    rows = house.rows()
    house.policy = remade(house, tmp_path / "odd", change)
    with pytest.raises(
        BadInputError, match=rf"^{house.policy}: the weights do not fit config\.json \({re.escape(message)}\)"
    ):
        house.update([{**row, "policy": house.policy.digest} for row in rows], house.rewards)


def test_a_head_beside_the_model_does_no_harm(house: House, tmp_path: Path) -> None:
    """A critic's head that another trainer left, and the rotary frequencies of old checkpoints."""
    extra = {"v_head.summary.weight": 1, "model.layers.0.self_attn.rotary_emb.inv_freq": 8}
    rows = house.rows()
    house.policy = remade(
        house, tmp_path / "odd", lambda _c, tensors: tensors.update({k: torch.ones(n) for k, n in extra.items()})
    )
    folder, _ = house.update([{**row, "policy": house.policy.digest} for row in rows], house.rewards)
    assert not extra.keys() & house.weights(folder).keys()


def test_the_state_of_a_smaller_model_names_the_tensor_and_what_to_do(house: House) -> None:
    folder, _ = house.update(house.rows(), house.rewards, lr=1e-2)
    house.policy = Ref("checkpoints", folder.name)
    state = load_file(state_folder(folder) / "optimizer.safetensors")
    smaller = save({**state, "exp_avg.model.norm.weight": torch.zeros(16)})
    replace_state(house.store, folder, house.policy, optimizer=smaller)
    message = (
        r"optimizer\.safetensors of adamw: exp_avg\.model\.norm\.weight has shape \(16,\), expected \(32,\).*for a"
    )
    with pytest.raises(CorruptArtifactError, match=message):
        house.update(house.rows(), house.rewards)


def test_a_checkpoint_whose_state_does_not_fit_is_refused(house: House) -> None:
    folder, _ = house.update(house.rows(), house.rewards, lr=1e-2)
    house.policy = Ref("checkpoints", folder.name)
    replace_state(house.store, folder, house.policy, state=None)
    with pytest.raises(CorruptArtifactError, match="this version cannot read the training state of"):
        house.update(house.rows(), house.rewards)
