"""A chat template that came with somebody's policy: it may loop, fill the memory or fail, and the stage says so."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError
from gradus.models import rendering
from gradus.models.policy import new_policy, prompt_text
from gradus.models.rendering import Asked, PromptError, prompt_texts
from gradus.models.templates import PromptConfig
from gradus.models.tiny_tokenizer import tiny_tokenizer
from tests.tasks.stages.rollout.test_stage import PLAN, House

CHATML = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'nobody' %}{{ raise_exception('nobody speaks') }}{% endif %}"
    "<|{{ m.role }}|>\n{{ m.content | trim }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
LOOPS = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
DOUBLES = "{% set n = namespace(x='xxxx') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}"
HOSTILE = {
    DOUBLES: "memory",
    "{{ 'x' * 10**11 }}": "memory",
    "{{ 1 // (messages | length - 1) }}": "the policy's chat template fails: ",
    "{{ raise_exception('never') }}": "the policy's chat template refuses the messages: never",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}": "the policy's chat template fails: ",
    "{{ ''.__class__ }}{{ messages.__class__.__mro__ }}": "chat template refuses the messages: ",
}


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_a_template_that_loops_ends_the_stage_with_a_sentence(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "LIMIT_S", 1)
    made = new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=64, seed=0)
    made.tokenizer.chat_template = (
        "{% if 'odd' in messages[0].content %}" + LOOPS + "{% endif %}{{ messages[0].content }}"
    )
    folder = house.store.root / "looping"
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    policy = house.store.adopt(folder)
    problems = pa.table({"problem_id": ["a", "b"], "question": ["1 + 2 =", "odd"]})
    with pytest.raises(BadInputError) as refused:
        house.run(house.job(PLAN, problems, policy=policy))
    where = re.escape(str(house.store.path(policy)))
    assert re.fullmatch(
        f"problem b has no prompt: the chat template of the policy in {where} did not end within 1 s of computing",
        str(refused.value),
    )


@pytest.mark.parametrize("template", HOSTILE, ids=lambda text: text[:24])
def test_other_failures_of_a_template_are_sentences(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "MEMORY_BYTES", 1 << 28)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(PromptError) as refused:
        prompt_texts(tokenizer, [Asked("1 + 1 =")])
    assert HOSTILE[template] in str(refused.value)
    assert len(str(refused.value)) < 500
    assert not re.search(r"\w+Error|Exception|jinja", str(refused.value))


def test_prompts_are_those_that_the_tokenizer_renders_here(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHATML
    style = PromptConfig(system="Be brief.", template="Q: {question} {hint}")
    asked = [
        *(Asked(f"{i} \N{SNOWMAN} {{{{ x }}}} <b>\u2028", hint_text="so\n" if i % 2 else None) for i in range(5)),
        Asked(None, [{"role": "system", "content": "own"}, {"role": "user", "content": " hi "}]),
    ]
    here = [prompt_text(tokenizer, one.question, one.messages, one.hint_text, style) for one in asked]
    assert prompt_texts(tokenizer, asked, style) == here
    with pytest.raises(PromptError, match="nobody speaks") as refused:
        prompt_texts(tokenizer, [*asked, Asked(None, [{"role": "nobody", "content": ""}]), asked[0]])
    assert refused.value.index == len(asked)
    monkeypatch.setattr(rendering.os, "fork", None)
    assert prompt_texts(tiny_tokenizer(), asked[:1]), "without a template nothing is forked"
