r"""A chat template for a policy without one, which makes the prompt that the policy was given.

tokenizer.chat_template = plain_chat_template(tokenizer, PLAIN)
tokenizer.apply_chat_template([{"role": "user", "content": "1 + 2 ="}])     # "1 + 2 =\n", as `prompt_text` has it
"""

import json

from transformers import PreTrainedTokenizerBase

from gradus.models.templates import PromptConfig, filled

MARK = "{#- gradus: the prompt of a policy without a chat template #}"
"""Begins such a template: a policy that has it is prompted as before it was exported."""
_PLACE = "\0"


def plain_chat_template(tokenizer: PreTrainedTokenizerBase, style: PromptConfig) -> str:
    """Return the template as Jinja: special tokens, system paragraph, question; more than one question is refused."""
    # The special tokens that the tokenizer puts before and behind a text, which a chat template writes itself.
    without: list[int] = tokenizer("1", add_special_tokens=False)["input_ids"]
    ids: list[int] = tokenizer("1")["input_ids"]
    start = next((at for at in range(len(ids)) if ids[at : at + len(without)] == without), 0)
    before, behind = (str(tokenizer.decode(part)) for part in (ids[:start], ids[start + len(without) :]))
    parts = filled(style.template, _PLACE).split(_PLACE) if style.template else ["", "\n"]
    question = " + messages[-1]['content'] + ".join(map(_literal, parts))
    system = f"(messages[0]['content'] if messages[0]['role'] == 'system' else {_literal(style.system)})"
    return (
        f"{MARK}{{%- set system = {system} -%}}"
        "{%- if messages | rejectattr('role', 'equalto', 'system') | list | length != 1 -%}"
        "{{- raise_exception('this policy answers one message') -}}{%- endif -%}"
        f"{{{{- {_literal(before)} + (system + {_literal(chr(10) * 2)} if system else '') + {question}"
        f" + {_literal(behind)} -}}}}"
    )


def is_plain(template: object) -> bool:
    """Return whether a chat template was made here."""
    return isinstance(template, str) and template.startswith(MARK)


def _literal(text: str) -> str:
    """A text as a string of Jinja, which reads the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False)
