"""The chat template that an export adds makes the tokens of the prompt that the policy was given."""

from typing import Any

import jinja2
import pytest
from tokenizers.processors import TemplateProcessing

from gradus.models.chat_template import is_plain, plain_chat_template
from gradus.models.policy import prompt_text, prompt_tokens
from gradus.models.templates import PLAIN, PromptConfig
from gradus.models.tiny_tokenizer import tiny_tokenizer

HARD = "Say \"1\\n\" {{ 7 }} {% x %} \U0001f600\n\t'{question}' and {question}\n=\n\n"


@pytest.mark.parametrize(
    "style", [PLAIN, PromptConfig(system="4 + 4", template="{question} 0\n{hint}"), PromptConfig(template=HARD)]
)
@pytest.mark.parametrize("with_start", [False, True])
def test_it_makes_the_same_text_and_the_same_tokens(style: PromptConfig, with_start: bool) -> None:
    tokenizer: Any = tiny_tokenizer()
    if with_start:
        end = (tokenizer.eos_token, tokenizer.eos_token_id)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{end[0]} $A", special_tokens=[end])
    question = "1 + 2 = {{ messages }}"
    text = prompt_text(tokenizer, question, None, style=style)
    tokens = prompt_tokens(tokenizer, [text])
    tokenizer.chat_template = plain_chat_template(tokenizer, style)
    asked = [{"role": "user", "content": question}]
    made = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    assert made == (tokenizer.eos_token if with_start else "") + text
    assert tokenizer.apply_chat_template(asked, return_dict=False) == tokens[0]
    assert is_plain(tokenizer.chat_template)
    with pytest.raises(jinja2.TemplateError, match="answers one message"):
        tokenizer.apply_chat_template([*asked, *asked])
