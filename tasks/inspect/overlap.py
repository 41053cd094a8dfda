"""Problems that a training both learns from and is evaluated on: the figures there are not of unseen problems."""

import pyarrow as pa

from gradus.data.arrays import Bools, Column, bools, one_array, pc
from gradus.data.lake.store import Ref, Store

IDENTITY = ["problem_id", "question", "messages"]
"""The columns by which problems are recognised."""


def shared_problems(store: Store, trained: Ref, evaluated: Ref, suite: str) -> str:
    """Return a remark on the evaluated problems that are trained on; empty if none is, or either is not there.

    They are recognised by their text without case and spaces, and by their id.
    """
    if store.find(trained) is None or store.find(evaluated) is None:
        return ""
    learnt, measured = store.read(trained, IDENTITY), store.read(evaluated, IDENTITY)
    by_text, by_id = recognised(learnt, measured)
    num_text, num_all = int(by_text.sum()), int((by_text | by_id).sum())
    if not num_all:
        return ""
    alone = f", {num_all - num_text} by their id alone" if num_all > num_text else ""
    total = measured.num_rows
    return (
        f"{num_all} of the {total} problems of {suite} are trained on, too{alone}: figures there are not of unseen ones"
    )


def recognised(known: pa.Table, problems: pa.Table) -> tuple[Bools, Bools]:
    """Return which problems (P,) are among the known ones by their text, and by their id."""
    by_text = pc.is_in(_texts(problems), value_set=_texts(known).drop_null())
    by_id = pc.is_in(one_array(problems.column("problem_id")), value_set=one_array(known.column("problem_id")))
    return bools(by_text), bools(by_id)


def _texts(problems: pa.Table) -> Column:
    """The text of each problem without case and spaces; null if it has none."""
    found = one_array(problems.column("question"))
    if found.null_count:
        chats: list[list[dict[str, str]] | None] = problems.column("messages").to_pylist()
        joined = ["".join(turn["content"] for turn in turns) if turns else None for turns in chats]
        found = pc.coalesce(found, pa.array(joined, pa.string()))
    return pc.replace_substring_regex(pc.utf8_lower(found), pattern=r"\s+", replacement="")
