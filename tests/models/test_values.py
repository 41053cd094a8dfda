"""Values of a reward model, against sequence classification of transformers, text by text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from gradus.components.rows import Rows
from gradus.models.errors import PolicyError
from gradus.models.measures.scored import beginnings, reward_model, step_rewards
from gradus.models.measuring import MeasureError, Model
from gradus.models.policy import Policy, load_policy, load_prompt_side
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.tasks.preflight.checks import SAMPLES
from tests.scorers import scorer, scorer_folder

PAD = 0
TEXTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [9, 10, PAD, 4], [5, 6, PAD, PAD], [PAD, PAD], [7] * 64]
TEMPLATE = (
    "{% for m in messages %}{{ '+' if m.role == 'user' else '-' }}{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}-{% endif %}"
)


def one_by_one(model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> list[float]:
    """The scores of unpadded texts, each in a call of its own."""
    with torch.no_grad():
        return [float(model(input_ids=torch.tensor([[*text]])).logits[0, 0]) for text in texts]


@pytest.mark.parametrize("micro_tokens", [1, 9, 16_384])
@pytest.mark.parametrize("padding", [None, PAD, 3, -1])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_values_are_those_of_transformers_however_texts_are_batched(
    kind: str, padding: int | None, micro_tokens: int
) -> None:
    model, done = scorer(kind, pad_token_id=padding), list[int]()
    found = Model(Policy(model, tiny_tokenizer()), micro_tokens=micro_tokens, on_rows=done.append).values(TEXTS)
    assert found.dtype == np.float64
    assert found == pytest.approx(one_by_one(model, TEXTS), abs=1e-5)
    assert np.ptp(found) > 0.5
    assert sum(done) == len(TEXTS)
    assert len(done) == len(TEXTS) or (padding in (PAD, 3) and micro_tokens > 1)


def test_left_and_right_padding_of_transformers_say_the_same() -> None:
    model = scorer(pad_token_id=PAD)
    texts = TEXTS[:3]
    width = max(map(len, texts))
    for rows, mask in (
        ([[PAD] * (width - len(t)) + t for t in texts], [[0] * (width - len(t)) + [1] * len(t) for t in texts]),
        ([t + [PAD] * (width - len(t)) for t in texts], [[1] * len(t) + [0] * (width - len(t)) for t in texts]),
    ):
        with torch.no_grad():
            batch = model(input_ids=torch.tensor(rows), attention_mask=torch.tensor(mask)).logits[:, 0]
        assert Model(Policy(model, tiny_tokenizer())).values(texts) == pytest.approx(batch.numpy(), abs=1e-5)


def test_texts_that_do_not_fit_have_no_value_and_the_wrong_question_is_refused() -> None:
    model = Model(Policy(scorer(pad_token_id=PAD), tiny_tokenizer()))
    assert np.isnan(model.values([[5, 6], [], [7] * 65])).tolist() == [False, True, True]
    assert np.isnan(model.values([[]])).tolist() == [True]
    assert model.hidden([[5, 6], [7]], lambda states: states.mean(0)).shape == (2, 32)
    with pytest.raises(MeasureError, match="token 99 is none of the model's 23"):
        model.values([[99]])
    with pytest.raises(MeasureError, match="log-probs need a language model, and this one has a scalar head"):
        model.logprobs([[5]], [[6]])
    with pytest.raises(MeasureError, match="values need a model with a scalar head, and this one is a language model"):
        Model(load_policy(SAMPLES / "policy")).values([[5]])


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_reward_model_scores_a_problem_and_its_completion_as_its_own_tokens(
    tmp_path: Path, template: str | None
) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    folder = scorer_folder(tmp_path / "scorer", tokenizer, pad_token_id=PAD)
    rows = Rows(
        {
            "completion": ["3", "#### 9", None, "1" * 70],
            "problem.question": ["1 + 2 =", None, "4 =", "1 + 2 ="],
            "problem.messages": [None, [{"role": "user", "content": "4 + 5 ="}], None, None],
        }
    )
    found = reward_model(rows, Model(load_policy(folder, heads=True)))["value"]
    # The oracle loads the folder and renders the text by itself.
    whole = (
        ["1 + 2 =\n3", "4 + 5 =\n#### 9"] if template is None else ["+1 + 2 =<end>-3<end>", "+4 + 5 =<end>-#### 9<end>"]
    )
    oracle: Any = AutoModelForSequenceClassification.from_pretrained(folder)
    expected = one_by_one(oracle.eval(), tokenizer(whole)["input_ids"])
    assert found[:2] == pytest.approx(expected, abs=1e-5)
    assert np.isnan(found).tolist() == [False, False, True, True]


def test_a_reward_model_sees_no_thinking(tmp_path: Path) -> None:
    folder = scorer_folder(tmp_path / "scorer", pad_token_id=PAD)
    texts = ["<think>1</think>3", "3", "<think>3", None, "1</think>2</think>3"]
    rows = Rows({"completion": texts, "problem.question": ["1 + 2 ="] * 5, "problem.messages": [None] * 5})
    found = reward_model(rows, Model(load_policy(folder, heads=True)), behind_thinking=True)["value"]
    oracle: Any = AutoModelForSequenceClassification.from_pretrained(folder)
    (expected,) = one_by_one(oracle.eval(), tiny_tokenizer()(["1 + 2 =\n3"])["input_ids"])
    assert found == pytest.approx([expected, expected, np.nan, np.nan, expected], abs=1e-5, nan_ok=True)


def test_step_rewards_score_each_beginning_of_a_completion(tmp_path: Path) -> None:
    folder = scorer_folder(tmp_path / "scorer", pad_token_id=PAD)
    rows = Rows(
        {
            "completion": ["3\n\n4\n5", "6", None, " \n", "7\n" + "1" * 70],
            "problem.question": ["1 + 2 =", None, "4 =", "1 =", "1 + 2 ="],
            "problem.messages": [None, [{"role": "user", "content": "4 + 5 ="}], None, None, None],
        }
    )
    found = step_rewards(rows, Model(load_policy(folder, heads=True)))
    whole = ["1 + 2 =\n3", "1 + 2 =\n3\n\n4", "1 + 2 =\n3\n\n4\n5", "4 + 5 =\n6"]
    oracle: Any = AutoModelForSequenceClassification.from_pretrained(folder)
    *first, second = one_by_one(oracle.eval(), tiny_tokenizer()(whole)["input_ids"])
    assert np.ptp(first) > 0.01
    assert found["values"][0] == pytest.approx(first, abs=1e-5)
    assert found["values"][1] == pytest.approx([second], abs=1e-5)
    assert found["values"][2:] == [None, None, None]
    for name, expected in (("least", min(first)), ("mean", sum(first) / 3), ("last", first[-1])):
        assert found[name][:2] == pytest.approx([expected, second], abs=1e-5)
        assert np.isnan(found[name]).tolist() == [False, False, True, True, True]
    assert beginnings("a=1;; b=2;", ";") == ["a=1", "a=1;; b=2"]


def test_a_scalar_head_is_loaded_only_where_it_is_asked_for(tmp_path: Path) -> None:
    folder = scorer_folder(tmp_path / "scorer", tie_word_embeddings=True)
    for load in (load_policy, load_prompt_side):
        with pytest.raises(
            PolicyError, match=r"scores texts, by the architecture .* can neither sample nor be trained"
        ):
            load(folder)
    with pytest.raises(PolicyError, match="returns 2 numbers for a text, by the labels in its"):
        load_policy(scorer_folder(tmp_path / "classes", num_labels=2), heads=True)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(PolicyError, match="has no weights as safetensors, and other formats can run code"):
        load_policy(folder, heads=True)
    scorer_without_head(tmp_path / "headless")
    with pytest.raises(PolicyError, match=r"the weights do not fit config.json .* score.weight is missing"):
        load_policy(tmp_path / "headless", heads=True)


def scorer_without_head(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(scorer_folder(folder) / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
