"""Remarks that the figures of a run need beside them, in sentences made of the counts of its stages."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from gradus.data.arrays import Bools, bools, one_array, pc
from gradus.data.curation.overlap import WORDS, contaminated, texts_of, whole_texts
from gradus.data.lake.store import Ref, Store
from gradus.tasks.runs.history import Attempt
from gradus.tasks.runs.records import Summary
from gradus.tasks.stages.context import read_report

MAX_LISTED = 12
IDENTITY = ["problem_id", "question", "messages"]
"""The columns by which problems are recognised."""
MAX_CHARS = 1 << 25
"""Characters of training problems whose runs of words are compared for a remark alone: 7 s on one core."""
_FILTER = """curate.filters = ["decontaminated"]"""
_COUNTED = {
    "curate": {
        "tied_out": "{tied_out} problems that `top` left out rank equal to the last one kept "
        "({ranking} = {tied_value}): ids decided, not the ranking",
        "unmeasured": "no problem has a measured pass rate: the filters on it kept all {unmeasured}",
    },
    "hint": {
        "repeated_levels": "hints of {repeated_levels} of {problems} problems have the same text at two levels or "
        "more; a group that saw the text of the level before is not sampled again",
        "stated_early": "in {stated_early} of {problems} problems a step before the last states the answer: hints end "
        "before it",
    },
}
"""By stage and count: the remark if the count is not 0."""


def remarks(store: Store, attempts: Sequence[Attempt]) -> list[str]:
    """Return the remarks on a run, given the attempts whose artifacts it has."""
    summaries = [(row, read_report(store, Ref.parse(row["output"])).get("summary", {})) for row in attempts]
    updates = {row["round"]: found for row, found in summaries if row["stage"] == "update"}
    skipped = [index for index, found in updates.items() if found.get("skipped_updates")]
    of_stages = [text for row, found in summaries for text in remarks_of(row["stage"], row["purpose"], found)]
    of_updates = [*skipped_rounds(skipped, len(updates)), *_replaced_groups(list(updates.values()))]
    of_texts = left_out_texts([found for row, found in summaries if row["stage"] == "rollout"])
    return [*_shared(store, summaries), *dict.fromkeys(of_stages), *of_texts, *of_updates]


def _shared(store: Store, stages: Sequence[tuple[Attempt, Summary]]) -> Iterator[str]:
    """Remark on evaluated problems that are trained on, once for each suite."""
    trained = [row["output"] for row, _ in stages if (row["stage"], row["purpose"]) == ("curate", "train")]
    plan = store.manifest(Ref.parse(trained[-1])) if trained else None
    learnt = plan.parent("problems") if plan else None
    filtered = plan is not None and is_filtered(plan.config.get("filters", ()))
    evaluated = {str(found.get("suite", "")): row["output"] for row, found in stages if row["stage"] == "evaluate"}
    for suite, output in evaluated.items():
        ref = store.manifest(Ref.parse(output)).parent("problems") if learnt else None
        if learnt and ref:
            yield from shared_problems(store, learnt, ref, suite, filtered=filtered, always=True)


def is_filtered(filters: Iterable[Mapping[str, object]]) -> bool:
    """Return whether one of some filters leaves out the problems that share text with evaluated ones."""
    return any(each.get("name") == "decontaminated" for each in filters)


def shared_problems(
    store: Store, trained: Ref, evaluated: Ref, suite: str, *, filtered: bool = False, always: bool = False
) -> list[str]:
    """Return remarks on evaluated problems that are trained on, and on training problems that share text with them.

    None if either table is not there. The first are recognised by their text without case and spaces, and by their id,
    the others by runs of words (gradus.data.curation.overlap) unless they have more than MAX_CHARS characters. With
    `filtered` those are not trained on. With `always` it is said, too, if there are none or they were not compared.
    """
    if store.find(trained) is None or store.find(evaluated) is None:
        return []
    learnt, measured = store.read(trained, IDENTITY), store.read(evaluated, IDENTITY)
    texts = texts_of(learnt)
    compared = (pc.sum(pc.utf8_length(texts)).as_py() or 0) <= MAX_CHARS
    shared = contaminated(texts, texts_of(measured)) if compared else recognised(measured, learnt)[0]
    by_text, by_id = recognised(learnt.filter(pa.array(~shared)) if filtered else learnt, measured)
    num_text, num_all = int(by_text.sum()), int((by_text | by_id).sum())
    found: list[str] = []
    if num_all:
        alone = f", {num_all - num_text} by their id alone" if num_all > num_text else ""
        known = f"{num_all} of the {measured.num_rows} problems of {suite} are trained on, too{alone}"
        found.append(f"{known}: figures there are not of unseen ones")
    if not compared and always and not filtered:
        found.append(
            f"runs of {WORDS} words of {learnt.num_rows} training problems were not compared with {suite}, which takes "
            f"long: {_FILTER} does, and leaves them out"
        )
    elif compared and (num := int(shared.sum())):
        then = "the filter decontaminated leaves them out" if filtered else f"{_FILTER} leaves them out"
        many = f"{num} of the {learnt.num_rows} training problems share"
        found.append(f"{many} {WORDS} words in a row with a problem of {suite}, or all their text: {then}")
    elif compared and always:
        found.append(f"no training problem shares {WORDS} words in a row, or all its text, with a problem of {suite}")
    return found


def recognised(known: pa.Table, problems: pa.Table) -> tuple[Bools, Bools]:
    """Return which problems (P,) are among the known ones by their text, and by their id."""
    texts, others = (whole_texts(texts_of(each)) for each in (problems, known))
    by_text = pc.is_in(texts, value_set=others.drop_null())
    by_id = pc.is_in(one_array(problems.column("problem_id")), value_set=one_array(known.column("problem_id")))
    return bools(by_text), bools(by_id)


def remarks_of(stage: str, purpose: str, summary: Summary) -> list[str]:
    """Return the remarks on one stage by what it counted; an empty purpose is that of a verb alone."""
    if stage == "ingest":
        return _refused_rows(purpose, summary)
    if stage == "difficulty" and summary.get("rollouts") and not summary.get("judged", 1):
        rows = summary.get("rows", 0)
        return [f"no rollout has a verdict: the pass rates of all {rows} problems are unmeasured (n = 0)"]
    counts = defaultdict[str, object](int, summary)
    return [text.format_map(counts) for key, text in _COUNTED.get(stage, {}).items() if counts[key]]


def skipped_rounds(skipped: Sequence[int], num_rounds: int) -> list[str]:
    """Remark on the rounds whose update was skipped."""
    if not skipped:
        return []
    listed = ", ".join(map(str, skipped[:MAX_LISTED])) + (" …" if len(skipped) > MAX_LISTED else "")
    return [f"{len(skipped)} of {num_rounds} rounds had no signal and skipped their update: {listed}"]


def _replaced_groups(updates: Sequence[Summary]) -> list[str]:
    replaced = sum(found.get("replaced_groups", 0) for found in updates)
    if not replaced:
        return []
    learnt = sum(found.get("groups", 0) for found in updates if not found.get("skipped_updates"))
    text = f"updates learnt from {learnt} groups and left out {replaced} failed ones that a hinted one followed"
    return [f"{text} (update.drop_replaced_groups)"]


def left_out_texts(rollouts: Sequence[Summary]) -> list[str]:
    """Remark on the given texts that the rollout stages of all rounds left out, with the first and its reason."""
    num = sum(sum(each.get("refused", {}).values()) for each in rollouts)
    examples = [text for each in rollouts for text in each.get("examples", ())]
    return [f"{num} given text{'s are' if num > 1 else ' is'} left out (first {examples[0]})"] if num else []


def _refused_rows(purpose: str, summary: Summary) -> list[str]:
    refused = summary.get("refused", {})
    num_refused = sum(refused.values())
    if not num_refused:
        return []
    what = {"": "problems", "train": "training problems"}.get(purpose, f"problems of {purpose}")
    reasons = ", ".join(f"{reason}: {count}" for reason, count in refused.items())
    first = next(iter(summary.get("examples", ())), "")
    again = any("duplicate" in reason for reason in refused)
    text = f"{what}: {num_refused} of {num_refused + summary.get('rows', 0)} rows are left out"
    more = "; ingest.duplicates=keep takes repeated questions" if again else ""
    return [f"{text} ({reasons}; first {first}){more}"]
