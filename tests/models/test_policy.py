"""Policies: what loads, what is refused and with which words, and how a problem becomes a prompt."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from gradus.models.policy import (
    Policy,
    PolicyError,
    completion_texts,
    load_policy,
    load_prompt_side,
    new_policy,
    prompt_text,
    prompt_tokens,
)
from gradus.models.templates import PromptConfig
from gradus.models.tiny_tokenizer import PHRASES, tiny_tokenizer

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"


def tiny(seed: int = 0) -> Policy:
    return new_policy(tiny_tokenizer(), width=16, layers=1, heads=2, max_positions=32, seed=seed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    policy = tiny()
    policy.model.save_pretrained(tmp_path / "p")
    policy.tokenizer.save_pretrained(tmp_path / "p")
    return tmp_path / "p"


def flat(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


def test_a_seed_decides_every_weight_and_leaves_the_global_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = tiny()
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(flat(first), flat(tiny()))
    assert not torch.equal(flat(first), flat(tiny(seed=1)))
    assert not first.model.training


def test_saved_and_loaded_is_the_same_policy(folder: Path) -> None:
    made, loaded = tiny(), load_policy(folder)
    assert torch.equal(flat(made), flat(loaded))
    ids = torch.tensor([[3, 9, 4, 10]])
    with torch.no_grad():
        assert torch.equal(made.model(ids).logits, loaded.model(ids).logits)
    text = PHRASES[0] + "12 + 3 - 45 =\n12+3=15\n#### "
    assert loaded.tokenizer(text)["input_ids"] == made.tokenizer(text)["input_ids"]
    assert loaded.tokenizer.decode(loaded.tokenizer(text)["input_ids"]) == text
    side = load_prompt_side(folder)
    assert loaded.prompt_side == replace(side, tokenizer=loaded.tokenizer)
    assert (side.context_tokens, side.end_tokens) == (32, (1,))
    assert not loaded.model.training


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_the_number_format_is_the_one_asked_for(folder: Path, dtype: str, expected: torch.dtype) -> None:
    assert load_policy(folder, dtype).model.dtype == expected  # pyright: ignore[reportArgumentType]


def test_end_tokens_of_the_generation_settings_come_first() -> None:
    policy = tiny()
    assert policy.model.generation_config is not None
    policy.model.generation_config.eos_token_id = [1, 7]
    assert policy.end_tokens == (1, 7)
    policy.model.generation_config.eos_token_id = None
    assert policy.end_tokens == (1,)
    policy.tokenizer.eos_token = None
    with pytest.raises(PolicyError, match="no end-of-sequence token"):
        _ = policy.end_tokens


def test_a_folder_that_is_no_policy_says_why(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"has no config\.json"):
        load_policy(tmp_path)
    without = shutil.copytree(folder, tmp_path / "without")
    (without / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match="cannot be loaded"):
        load_policy(without)
    pickled = shutil.copytree(without, tmp_path / "pickled")
    torch.save(tiny().model.state_dict(), pickled / "pytorch_model.bin")
    with pytest.raises(PolicyError, match="cannot be loaded"):
        load_policy(pickled)
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(PolicyError, match="cannot be loaded"):
        load_policy(broken)


def test_a_template_that_refuses_the_messages_says_so() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(PolicyError, match="roles must alternate"):
        prompt_text(tokenizer, "1 + 2 =")


def test_code_in_a_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match="brings its own code"):
        load_policy(folder)
    assert not marker.exists()


def test_a_tokenizer_larger_than_the_embeddings_is_refused(folder: Path) -> None:
    larger = tiny_tokenizer()
    larger.add_tokens(["<extra>"])
    larger.save_pretrained(folder)
    with pytest.raises(PolicyError, match="than the model has embeddings, 24 and 23; resize the model's"):
        load_policy(folder)


def test_a_prompt_without_a_template_is_continued_from_its_hint() -> None:
    tokenizer = tiny_tokenizer()
    assert prompt_text(tokenizer, "1 + 2 =") == "1 + 2 =\n"
    assert prompt_text(tokenizer, "1 + 2 =", None, "1+2=3\n") == "1 + 2 =\n1+2=3\n"
    assert prompt_text(tokenizer, None, [{"role": "user", "content": "1 + 2 ="}]) == "1 + 2 =\n"


def test_several_messages_without_a_template_are_not_joined_at_a_guess() -> None:
    turns = [{"role": "system", "content": "add"}, {"role": "user", "content": "1 + 2 ="}]
    with pytest.raises(PolicyError, match=r"several messages.*no chat template"):
        prompt_text(tiny_tokenizer(), None, turns)


def test_a_chat_template_marks_the_hint_and_leaves_the_messages_as_they_were() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT
    assert prompt_text(tokenizer, "1 + 2 =") == "<user>1 + 2 =<go>"
    turns = [{"role": "system", "content": "add"}, {"role": "user", "content": "1 + 2 ="}]
    found = prompt_text(tokenizer, None, turns, "1+2=3")
    assert found == "<system>add<user>1 + 2 =\n\nHint (the beginning of a correct solution):\n1+2=3<go>"
    assert turns[-1]["content"] == "1 + 2 ="


STYLE = PromptConfig(system="1 + 1 = 2", template="0: {question}\n{hint}")
BARE = PromptConfig(template="Q: {question} A:")


@pytest.mark.parametrize(
    ("style", "hint", "prompt"),
    [
        (PromptConfig(system="sums"), None, "sums\n\n1 + 2 =\n"),
        (PromptConfig(system="sums"), "1+2=", "sums\n\n1 + 2 =\n1+2="),
        (STYLE, None, "1 + 1 = 2\n\n0: 1 + 2 =\n"),
        (STYLE, "1+2=", "1 + 1 = 2\n\n0: 1 + 2 =\n1+2="),
        (BARE, None, "Q: 1 + 2 = A:"),
        (BARE, "1+2=", "Q: 1 + 2 = A:\n1+2="),
        (PromptConfig(template="{question}\n"), "1+2=", "1 + 2 =\n1+2="),
    ],
)
def test_a_style_without_a_chat_template(style: PromptConfig, hint: str | None, prompt: str) -> None:
    tokenizer = tiny_tokenizer()
    assert prompt_text(tokenizer, "1 + 2 =", None, hint, style) == prompt
    assert prompt_text(tokenizer, None, [{"role": "user", "content": "1 + 2 ="}], hint, style) == prompt


@pytest.mark.parametrize(
    ("style", "chat", "plain"),
    [
        (PromptConfig(), "<user>1 + 2 =\n\nKnow this:\n1+2=3<go>", "1 + 2 =\nKnow this:\n1+2=3\n"),
        (STYLE, "<system>1 + 1 = 2<user>0: 1 + 2 =\n1+2=3<go>", "1 + 1 = 2\n\n0: 1 + 2 =\n1+2=3"),
    ],
)
def test_a_hint_stands_below_the_sentence_of_its_strategy_unless_the_template_places_it(
    style: PromptConfig, chat: str, plain: str
) -> None:
    tokenizer = tiny_tokenizer()
    assert prompt_text(tokenizer, "1 + 2 =", None, "1+2=3", style, shown="Know this:") == plain
    tokenizer.chat_template = CHAT
    assert prompt_text(tokenizer, "1 + 2 =", None, "1+2=3", style, shown="Know this:") == chat


MARK = "\n\nHint (the beginning of a correct solution):\n"


@pytest.mark.parametrize(
    ("style", "hint", "prompt"),
    [
        (PromptConfig(system="sums"), None, "<system>sums<user>1 + 2 =<go>"),
        (STYLE, None, "<system>1 + 1 = 2<user>0: 1 + 2 =\n<go>"),
        (STYLE, "1+2=", "<system>1 + 1 = 2<user>0: 1 + 2 =\n1+2=<go>"),
        (BARE, "1+2=", f"<user>Q: 1 + 2 = A:{MARK}1+2=<go>"),
    ],
)
def test_a_style_with_a_chat_template(style: PromptConfig, hint: str | None, prompt: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT
    assert prompt_text(tokenizer, "1 + 2 =", None, hint, style) == prompt
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi"}]
    asked = [*turns, {"role": "user", "content": "1 + 2 ="}]
    said = "<user>Hi<assistant>Hi"
    expected = prompt.replace("<user>", f"{said}<user>")
    assert prompt_text(tokenizer, None, asked, hint, style) == expected
    own = prompt_text(tokenizer, None, [{"role": "system", "content": "own"}, asked[-1]], hint, style)
    assert own == "<system>own" + prompt[prompt.index("<user>") :]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}", "no system; without"),
        ("{{ messages[-1].content }}", "leaves out the system message"),
    ],
)
def test_a_chat_template_without_a_place_for_the_system_message_says_so(template: str, message: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(PolicyError, match=message):
        prompt_text(tokenizer, "1 + 2 =", style=PromptConfig(system="sums"))


def test_a_hostile_question_is_text_and_never_a_template() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT
    assert prompt_text(tokenizer, "{{ 7 * 7 }}{% raw %}") == "<user>{{ 7 * 7 }}{% raw %}<go>"


def test_the_tiny_tokenizer_reads_phrases_as_one_token_and_the_unknown_as_one_each() -> None:
    tokenizer = tiny_tokenizer()
    assert len(tokenizer) == 23
    # <pad> <end> <unknown>, five phrases, then 0123456789+-= line break and space.
    found = prompt_tokens(tokenizer, [PHRASES[0] + "4 + 13 =\n", "4+1=5\n#### 5", "é1𝄞", ""])
    assert found == [[3, 12, 5, 9, 11, 7, 21], [12, 18, 9, 20, 13, 21, 4, 13], [2, 9, 2], []]
    assert prompt_tokens(tokenizer, []) == []


@pytest.mark.parametrize("cleans", [False, True])
def test_completions_are_the_texts_that_transformers_gives_each(cleans: bool) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.clean_up_tokenization_spaces = cleans
    rng = np.random.default_rng(0)
    completions = [rng.integers(0, len(tokenizer), size).tolist() for size in (0, 1, 7, 40)] * 4
    expected = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in completions]
    assert completion_texts(tokenizer, completions) == expected
    assert completion_texts(tokenizer, [[12, 18, 9, 1]]) == ["4+1"]  # the end token is no text
    assert completion_texts(tokenizer, []) == []


def test_a_tokenizer_with_a_way_of_its_own_is_asked() -> None:
    class Shouting(PreTrainedTokenizerFast):
        def _decode(self, *args: Any, **kwargs: Any) -> str:
            return super()._decode(*args, **kwargs).upper() + "!"

    tokenizer = Shouting(tokenizer_object=tiny_tokenizer().backend_tokenizer)
    assert completion_texts(tokenizer, [[12, 18, 9]]) == ["4+1!"]
