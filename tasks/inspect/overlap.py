"""Problems that a training both learns from and is evaluated on: the figures there are not of unseen problems."""

import pyarrow as pa

from gradus.data.arrays import Column, one_array, pc
from gradus.data.lake.store import Ref, Store

_COLUMNS = ["problem_id", "question", "messages"]


def shared_problems(store: Store, trained: Ref, evaluated: Ref, suite: str) -> str:
    """Return a remark on the evaluated problems that are trained on; empty if none is, or either is not there.

    They are recognised by their text without case and spaces, and by their id.
    """
    if store.find(trained) is None or store.find(evaluated) is None:
        return ""
    learnt, measured = store.read(trained, _COLUMNS), store.read(evaluated, _COLUMNS)
    by_text = pc.is_in(_texts(measured), value_set=_texts(learnt))
    by_id = pc.is_in(one_array(measured.column("problem_id")), value_set=one_array(learnt.column("problem_id")))
    num_text, num_all = (pc.sum(each).as_py() or 0 for each in (by_text, pc.or_(by_text, by_id)))
    if not num_all:
        return ""
    alone = f", {num_all - num_text} by their id alone" if num_all > num_text else ""
    total = measured.num_rows
    return (
        f"{num_all} of the {total} problems of {suite} are trained on, too{alone}: figures there are not of unseen ones"
    )


def _texts(problems: pa.Table) -> Column:
    """The text of each problem without case and spaces; null if it has none."""
    found = one_array(problems.column("question"))
    if found.null_count:
        chats: list[list[dict[str, str]] | None] = problems.column("messages").to_pylist()
        joined = ["".join(turn["content"] for turn in turns) if turns else None for turns in chats]
        found = pc.coalesce(found, pa.array(joined, pa.string()))
    return pc.replace_substring_regex(pc.utf8_lower(found), pattern=r"\s+", replacement="")
