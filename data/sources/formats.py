r"""One row of a known format -> one problem. UnusableRowError says why a row cannot be used.

gsm8k: `question`, `answer` with <<a=b>> marks and `#### gold`. math: `problem`, `solution` with the gold in \boxed{}.
hints: the Scaf-GRPO table with its three tiers. plain: columns by our own names. Items of reasoning-gym's chain_sum get
a worked solution:

    worked_solution("12 + 5 - 3")   # (["12+5=17", "17-3=14"], "14")
"""

import contextlib
import hashlib
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Literal

from gradus.data.answers import normalised_gold
from gradus.data.records import Problem, Row
from gradus.data.sources.columns import is_finite, text_of

_TIERS = ("knowledge_components_parts", "planning_skeleton_parts", "solution_breakdown_parts")
FIELDS = (
    *("problem_id", "question", "messages", "answer", "solution", "domain", "source", "extra", "problem"),
    *("level", "type", "idx", "id", "reward_model", "rollout_reward_list", "difficulty_bucket", "metadata", *_TIERS),
)
"""Columns of a row that the formats read."""
_OPERATIONS = {"+": operator.add, "-": operator.sub}
_TERM = re.compile(r"\s*([+-])\s*(\d+)")


Answers = Literal["required", "optional", "json"]
"""Golds of plain rows: required, or left out where there is none, or JSON, where a reward reads such."""


class UnusableRowError(ValueError):
    """A row that is refused; the text is the reason."""


def gsm8k(row: Row) -> Problem:
    """GSM8K: the gold after `####`, calculator marks removed, the solution one step a line."""
    question, worked = _text(row, "question"), _text(row, "answer")
    solution, marker, gold = worked.rpartition("####")
    if not marker:
        raise UnusableRowError("no gold answer after ####")
    steps = [re.sub(r"<<[^<>]*>>", "", line).strip() for line in solution.splitlines()]
    return _problem(
        question=question,
        answer=_gold(gold),
        gold=gold,
        solution="\n".join(step for step in steps if step),
        domain="gsm8k",
        extra=json.dumps({"gold": gold.strip()}, ensure_ascii=False),
    )


def math_boxed(row: Row) -> Problem:
    """MATH: the gold is the last box of the solution; steps are its sentences."""
    question, solution = _text(row, "problem"), _text(row, "solution")
    if (gold := last_boxed(solution)) is None:
        raise UnusableRowError("no boxed answer in the solution")
    kept = {key: row[key] for key in ("level", "type", "idx") if key in row}
    return _problem(
        question=question,
        answer=" ".join(gold.split()),
        solution="\n".join(sentences(solution)),
        domain=str(row.get("type") or "math"),
        extra=json.dumps(kept, ensure_ascii=False),
    )


def hints(row: Row) -> Problem:
    """The Scaf-GRPO hint table: three tiers of hints and the measured pass rate go to `extra`."""
    model = row.get("reward_model") or {}
    if not isinstance(model, Mapping):
        raise UnusableRowError("reward_model is not an object")
    gold = _text_of(model, "ground_truth")
    rewards = _numbers(row, "rollout_reward_list")
    extra = {
        "tiers": [_texts(row, name) for name in _TIERS],
        "difficulty_bucket": row.get("difficulty_bucket"),
        "n": len(rewards),
        "k": int(sum(rewards)),
        "gold": gold,
    }
    return _problem(
        problem_id=(_label(row, "id") or "") if row.get("id") else "",
        question=_text(row, "question"),
        answer=_gold(gold),
        gold=gold,
        solution=_text_or_none(row, "solution"),
        domain=str(row.get("difficulty_bucket") or "hints"),
        extra=json.dumps(extra, ensure_ascii=False),
    )


def plain(row: Row, answers: Answers = "required") -> Problem:
    """Columns by our own names; everything else goes to `extra`."""
    known = ("problem_id", "question", "messages", "answer", "solution", "domain", "source")
    if (messages := _messages(row)) is None:
        _text(row, "question")
    answer, gold = _plain_gold(row, answers)
    rest = {key: value for key, value in row.items() if key not in known}
    return _problem(
        answer=answer,
        gold=gold,
        extra=_extra(rest.pop("extra", None), rest),
        problem_id=_label(row, "problem_id") or "",
        question=_text_or_none(row, "question"),
        messages=messages,
        solution=_text_or_none(row, "solution"),
        domain=_label(row, "domain"),
        source=_label(row, "source"),
    )


def _extra(given: object, rest: Mapping[str, object]) -> str:
    """Return what a row's `extra` holds, an object or its JSON, with its other columns; these win over a key of it.

    A text that is no object stays as it is if there are no other columns, else it is the key `extra`.
    """
    held: object = given
    if isinstance(given, str):
        with contextlib.suppress(ValueError, RecursionError):
            held = json.loads(given)
        if not rest:
            return given
    inside = held if isinstance(held, Mapping) else {} if given is None else {"extra": given}
    return json.dumps({**inside, **rest}, ensure_ascii=False, default=str)


def _plain_gold(row: Row, answers: Answers) -> tuple[str | None, str]:
    """Return the gold as it is compared and as it is given; None and empty if there is none, and none is required."""
    value = row.get("answer")
    if value is None and answers == "optional":
        return None, ""
    if answers == "json" and isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str), ""
    gold = _text_of(row, "answer")
    return _gold(gold), gold


def reasoning(row: Row) -> Problem:
    """A reasoning-gym item; chain_sum gets a worked solution."""
    metadata = row.get("metadata")
    if not isinstance(metadata, Mapping):
        raise UnusableRowError("metadata is not an object")
    name = str(metadata.get("source_dataset", "reasoning_gym"))
    kept = json.dumps(metadata, default=str, ensure_ascii=False)
    if name == "chain_sum":
        try:
            steps, answer = worked_solution(metadata["expression"])
        except (KeyError, TypeError, ValueError):
            raise UnusableRowError("not an item of chain_sum") from None
        if answer != row.get("answer") or "question" not in row:
            raise UnusableRowError("not an item of chain_sum")
        return _problem(
            question=_text_or_none(row, "question"),
            answer=answer,
            solution="\n".join(steps),
            domain=f"chain_sum/{len(steps)}",
            extra=kept,
        )
    gold = _text(row, "answer")
    return _problem(question=_text(row, "question"), answer=_gold(gold), gold=gold, domain=name, extra=kept)


def worked_solution(expression: str) -> tuple[list[str], str]:
    """Evaluate a chain of sums from left to right, one step a line; raise ValueError for other expressions."""
    if (first := re.match(r"\s*(-?\d+)", expression)) is None:
        raise ValueError(f"{expression!r} is not a chain of sums")
    total, at, steps = int(first[1]), first.end(), list[str]()
    while at < len(expression.rstrip()):
        if (term := _TERM.match(expression, at)) is None:
            raise ValueError(f"{expression!r} is not a chain of sums")
        result = _OPERATIONS[term[1]](total, int(term[2]))
        steps.append(f"{total}{term[1]}{term[2]}={result}")
        total, at = result, term.end()
    return steps, str(total)


FORMATS: dict[str, Callable[[Row], Problem]] = {
    "gsm8k": gsm8k,
    "math": math_boxed,
    "hints": hints,
    "plain": plain,
    "reasoning": reasoning,
}


def detect(row: Row) -> str:
    """The format of a file by its first row."""
    if "solution_breakdown_parts" in row:
        return "hints"
    answer = row.get("answer")
    if isinstance(answer, str) and "####" in answer and "question" in row:
        return "gsm8k"
    if "problem" in row and "solution" in row and "question" not in row:
        return "math"
    return "plain"


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...} or \fbox{...} with balanced braces, or of `\boxed 5`; None without one."""
    if not (starts := list(re.finditer(r"\\(?:boxed|fbox)\s*(\{|(?=[^\s{]))", text))):
        return None
    start = starts[-1]
    if not start[1]:
        return text[start.end() :].split("$", maxsplit=1)[0].split(maxsplit=1)[0]
    depth = 1
    for at in range(start.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start.end() : at]
    return None


def sentences(solution: str) -> list[str]:
    """A solution's lines and sentences, never cut inside $...$ or a LaTeX environment."""
    found: list[str] = []
    current, dollars = "", 0
    for piece in re.split(r"(?<=[.!?])\s+|\n+", solution):
        current = f"{current} {piece}".strip()
        dollars = current.replace(r"\$", "").count("$")
        opened = current.count(r"\begin{") - current.count(r"\end{") + current.count(r"\[") - current.count(r"\]")
        if dollars % 2 == 0 and opened <= 0 and current:
            found.append(current)
            current = ""
    return [*found, current] if current else found


def content_id(problem: Problem) -> str:
    """Return an id from question and messages, for sources without ids; a corrected answer does not change it."""
    text = f"{problem['question']}\0{json.dumps(problem['messages'])}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(row: Row, name: str) -> str:
    if (value := row.get(name)) is None:
        raise UnusableRowError(f"no {name}")
    if not isinstance(value, str):
        raise UnusableRowError(f"{name} is not text")
    if not value.strip():
        raise UnusableRowError(f"empty {name}")
    if "\0" in value:
        raise UnusableRowError(f"{name} holds a NUL character")
    return value.strip()


def _text_of(row: Row, name: str) -> str:
    """A text that may be written as a number."""
    if (value := row.get(name)) is None:
        raise UnusableRowError(f"no {name}")
    if (found := text_of(value)) is None:
        raise UnusableRowError(f"{name} is neither text nor a finite number")
    return found


def _label(row: Row, name: str) -> str | None:
    """A text, or a number as one, by which a row is named or grouped; None if there is none."""
    return None if row.get(name) is None else _text_of(row, name)


def _text_or_none(row: Row, name: str) -> str | None:
    value = row.get(name)
    if not isinstance(value, str | None):
        raise UnusableRowError(f"{name} is not text")
    return value


def _problem(
    *,
    question: str | None,
    answer: str | None,
    domain: str | None,
    extra: str,
    solution: str | None = None,
    problem_id: str = "",
    messages: list[dict[str, str]] | None = None,
    source: str | None = None,
    gold: str = "",
) -> Problem:
    """A problem; one without an id gets that of what it asks (`content_id`)."""
    kept = " ".join(gold.split()) if gold else answer
    return Problem(
        problem_id=problem_id,
        question=question,
        messages=messages,
        answer=answer,
        answer_given=None if kept == answer else kept,
        solution=solution,
        domain=domain,
        source=source,
        extra=extra,
    )


def _messages(row: Row) -> list[dict[str, str]] | None:
    if not (messages := row.get("messages")):
        return None
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
        raise UnusableRowError("messages is not a list of objects with role and content")
    return messages


def _is_message(message: object) -> bool:
    return isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def _texts(row: Row, name: str) -> list[str]:
    parts = row.get(name) or []
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise UnusableRowError(f"{name} is not a list of texts")
    return parts


def _numbers(row: Row, name: str) -> list[float]:
    values = row.get(name) or []
    if not isinstance(values, list) or not all(isinstance(value, int | float) for value in values):
        raise UnusableRowError(f"{name} is not a list of numbers")
    if not all(is_finite(value) for value in values):
        raise UnusableRowError(f"{name} is not a list of finite numbers")
    return [float(value) for value in values]


def _gold(text: str) -> str:
    if not (gold := normalised_gold(text)):
        raise UnusableRowError("empty answer")
    return gold
