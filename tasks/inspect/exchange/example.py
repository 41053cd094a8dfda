"""The section of a model card on prompts: the messages, the prompt that they become, one completion, and the code."""

import json
from collections.abc import Mapping
from typing import Any

from gradus.data.arrays import pc
from gradus.data.lake.store import Ref, Store
from gradus.tasks.inspect.exchange.prompting import Prompting

MAX_CHARS = 4000
"""A longer completion is left out of the card."""
_CODE = """
```python
messages = {messages}
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
output = model.generate(**inputs, tokenizer=tokenizer{sampling})
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
```
"""
_OURS = "The policy had no chat template; `chat_template.jinja` makes the prompt that it was trained with."
_OWN = "The policy's own chat template makes the prompt; the messages hold what the recipe adds to a question."


def prompt_section(prompting: Prompting, example: Mapping[str, Any] | None, *, whole: bool) -> str:
    """Return the section; its example is JSON in a block of code, which is read as nothing else."""
    messages = prompting.messages("1 + 2 =" if example is None else example["question"], None)
    if example is not None and example["messages"]:
        messages = prompting.messages(None, example["messages"])
    given = "" if whole else "".join(f", {name}={value!r}" for name, value in prompting.sampling.items())
    parts = [f"\n## Prompt\n\n{_OURS if prompting.is_plain else _OWN}\n"]
    parts.append(_CODE.replace("{messages}", json.dumps(messages)).replace("{sampling}", given))
    if prompting.sampling:
        text = json.dumps(prompting.sampling)
        parts.append(f"\nEvaluated with `{text.replace('`', ' ')}`.\n")
    if example is not None:
        prompt = prompting.prompt(example["question"], example["messages"])
        shown = {"messages": messages, "prompt": prompt, "completion": example["completion"]}
        parts.append(
            f"\nA completion that the evaluation judged right:\n\n```json\n{json.dumps(shown, indent=1)}\n```\n"
        )
    return "".join(parts)


def example_of(store: Store, evaluation: Ref | None) -> Mapping[str, Any] | None:
    """Return the shortest right completion that an evaluation looked at, and its problem; None if there is none."""
    manifest = store.find(evaluation) if evaluation else None
    if manifest is None:
        return None
    inputs = {role: Ref.parse(texts[0]) for role, texts in manifest.parents.items() if texts}
    if not {"problems", "rollouts", "scores"} <= set(inputs) or None in map(store.find, inputs.values()):
        return None
    scores = store.read(inputs["scores"], ["rollout_id", "correct"])
    right = scores.filter(pc.fill_null(scores.column("correct"), False)).column("rollout_id")
    rows = store.read(inputs["rollouts"], ["rollout_id", "problem_id", "completion"])
    rows = rows.filter(pc.is_in(rows.column("rollout_id"), value_set=right.combine_chunks()))
    texts = [
        (len(text), text, name)
        for text, name in zip(*(rows.column(c).to_pylist() for c in ("completion", "problem_id")), strict=True)
    ]
    if not texts or min(texts)[0] > MAX_CHARS:
        return None
    _, completion, name = min(texts)
    problems = store.read(inputs["problems"], ["problem_id", "question", "messages"])
    (problem,) = problems.filter(pc.equal(problems.column("problem_id"), name)).to_pylist()
    return {"question": problem["question"], "messages": problem["messages"], "completion": completion}
