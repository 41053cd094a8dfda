"""Prompts of the rows of a plan: each tokenised with its problem, and refused by name if it cannot be."""

from collections.abc import Mapping, Sequence
from typing import Any

from gradus.data.errors import BadInputError
from gradus.models.policy import PromptSide, prompt_tokens
from gradus.models.rendering import Asked as PromptParts
from gradus.models.rendering import PromptError, prompt_texts
from gradus.models.templates import PromptStyle

Row = Mapping[str, Any]


def asked(row: Row, problem: Row) -> tuple[str | None, list[dict[str, str]] | None]:
    """Return the question and the messages of a prompt; messages of the plan replace both of the problem."""
    return (None, row["messages"]) if row["messages"] else (problem["question"], problem["messages"])


def tokenised_prompts(rows: Sequence[tuple[Row, Row]], side: PromptSide, style: PromptStyle) -> list[list[int]]:
    """Return the prompt of each row and its problem, tokenised together; BadInputError for an invalid one."""
    parts = [PromptParts(*asked(row, problem), row["hint_text"], shown=row["shown"]) for row, problem in rows]
    try:
        prompts = prompt_tokens(side.tokenizer, prompt_texts(side.tokenizer, parts, style))
    except PromptError as error:
        raise BadInputError(f"problem {rows[error.index][0]['problem_id']} has no prompt: {error}") from None
    for (row, _), tokens in zip(rows, prompts, strict=True):
        if not tokens:
            name = row["problem_id"]
            raise BadInputError(f"the prompt of problem {name} is empty: the tokenizer knows none of its characters")
    return prompts


def checked_prompts(rows: Sequence[tuple[Row, Row]], side: PromptSide, style: PromptStyle) -> list[list[int]]:
    """Return the same of rows that are sampled; BadInputError if one leaves no room for its completions."""
    prompts = tokenised_prompts(rows, side, style)
    for (row, _), tokens in zip(rows, prompts, strict=True):
        name, max_tokens = row["problem_id"], row["max_tokens"]
        if side.context_tokens - len(tokens) < max_tokens:
            raise BadInputError(
                f"the prompt of problem {name} has {len(tokens)} tokens; with max_tokens {max_tokens} "
                f"it does not fit the policy's {side.context_tokens}",
                hint=f"lower max_tokens, or leave such problems out: ingest.max_prompt_tokens="
                f"{side.context_tokens - max_tokens} in a training, --filter length for `gradus curate`",
            )
    return prompts


def refuse_empty(problem: Row) -> None:
    """Raise BadInputError for a problem without text."""
    if not ((problem["question"] or "").strip() or problem["messages"]):
        name = problem["problem_id"]
        raise BadInputError(f"problem {name} has neither a question nor messages: its prompt would be empty")
