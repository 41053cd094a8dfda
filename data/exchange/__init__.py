"""Rollouts as other systems write them: one module a system, rows in and out.

>>> FORMATS["verl"].read({"input": "1 + 1 =", "output": "2", "gts": "2", "score": 1.0, "step": 3}).reward
1.0
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from gradus.data.exchange import art, chat, open_instruct, trinity, trl, verl
from gradus.data.exchange.row import Exchanged
from gradus.data.records import Row


@dataclass(frozen=True)
class Format:
    """How one system writes rollouts; `write` is None for one that is only read, `read` for one that is only written.

    `lost` are sentences on what a file of it does not hold.
    """

    suffix: Literal[".jsonl", ".parquet"]
    lost: tuple[str, ...]
    read: Callable[[Row], Exchanged] | None = None
    write: Callable[[Exchanged], dict[str, object]] | None = None
    file: Callable[[int], str] | None = None
    """Returns the name of the file for the rollouts of a round."""
    step_in_name: bool = False
    """The step is in the name of a file alone, and groups are numbered within one."""
    texts: bool = True
    """Whether rows hold texts; otherwise a tokenizer makes them."""
    fields: tuple[str, ...] = ()
    """The columns that `read` looks for; others may be rewards."""


NO_TOKENS = "no tokens and no log-probs: the rows can be scored, curated and browsed, not updated from"
FORMATS: Mapping[str, Format] = {
    "verl": Format(".jsonl", (NO_TOKENS,), verl.read, verl.write, verl.file_name, fields=verl.FIELDS),
    "trl": Format(
        ".parquet",
        (NO_TOKENS, "no gold answers", "no advantages"),
        trl.read,
        trl.write,
        trl.file_name,
        fields=trl.FIELDS,
    ),
    "trinity": Format(
        ".jsonl", (NO_TOKENS, "no gold answers"), trinity.read, trinity.write, trinity.file_name, fields=trinity.FIELDS
    ),
    "openai": Format(".jsonl", (NO_TOKENS, "no rewards, no ids"), None, chat.write, chat.file_name),
    "open-instruct": Format(
        ".jsonl",
        ("the policy is not named, so no update takes the rows",),
        open_instruct.read,
        texts=False,
        fields=open_instruct.FIELDS,
    ),
    "art": Format(".parquet", (NO_TOKENS, "no gold answers"), art.read, step_in_name=True, fields=art.FIELDS),
}
"""By the name that the command line takes."""
