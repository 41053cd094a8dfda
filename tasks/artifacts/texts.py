"""Completions that waves plan without sampling them: a user's file of them as an artifact, and worked solutions.

traces_ref(store, "traces.jsonl", [problems])      # BadInputError if no row is of a problem that is trained on
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from gradus.data.errors import BadInputError
from gradus.data.lake.schema import ROLLOUTS
from gradus.data.lake.store import Ref, Store
from gradus.data.records import Problem
from gradus.data.sources.reading import Refused
from gradus.data.sources.traces import read_traces
from gradus.tasks.config.prompts import PROMPT_COLUMNS


def traces_ref(store: Store, path: str, problems: Sequence[Ref]) -> tuple[Ref, list[str]]:
    """Store the texts of a file, named by their content, and return a remark on rows that are left out, if any are.

    BadInputError if no row is of one of the problems.
    """
    known: dict[str, Problem] = {
        row["problem_id"]: row for ref in problems for row in store.read(ref, PROMPT_COLUMNS).to_pylist()
    }
    refused = Refused()
    traces = read_traces(Path(path), [*known.values()], refused)
    table = pa.table(
        {
            "rollout_id": [str(number) for number in range(len(traces))],
            "problem_id": [each.problem_id for each in traces],
            "completion": [each.text for each in traces],
            "source": pa.array([each.source for each in traces], pa.string()),
        }
    )
    num = refused.reasons.total()
    reasons = ", ".join(f"{reason}: {count}" for reason, count in refused.reasons.most_common())
    first = next(iter(refused.examples), "")
    remark = f"{path}: {num} of {num + len(traces)} rows are left out ({reasons}; first {first})"
    return store.put(ROLLOUTS.name, table), [remark] if num else []


def refuse_unsolved(store: Store, problems: Sequence[Ref]) -> None:
    """Raise BadInputError if no problem has a worked solution."""
    columns = [store.read(ref, ["problem_id", "solution"]).column("solution") for ref in problems]
    if all(column.null_count == len(column) for column in columns):
        raise BadInputError("no problem has a worked solution to give", hint="see `gradus ingest`")
