"""The stage `score` run once on a real store: rows in, result and scores out."""

from collections import Counter

import pyarrow as pa

from gradus.data.lake.store import Ref
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.score.stage import run

OUT = Ref("scores", "0123456789abcdef")


def rollouts_of(store, *rows):
    """Return a user's rows, with ids as `gradus.tasks.artifacts.resolve` adds them to rows without."""
    seen = Counter()
    keyed = []
    for given in rows:
        keyed.append({"rollout_id": f"{given['problem_id']}:{seen[given['problem_id']]}", **given})
        seen[given["problem_id"]] += 1
    return store.put("rollouts", pa.Table.from_pylist(keyed))


def row(problem_id, completion, answer=None, **more):
    return {"problem_id": problem_id, "completion": completion, "answer": answer, **more}


def score(store, warm, config, rollouts, problems=None, beats=None):
    """One attempt, committed as the adapter does it: the result and the rows of the artifact."""
    out = store.writer(OUT)
    inputs = {"rollouts": (rollouts,)} | ({"problems": (problems,)} if problems else {})
    heard = beats if beats is not None else []
    ctx = StageContext(store, inputs, out, 0, warm, lambda frac, text="": heard.append((frac, text)))
    result = run(ctx, config)
    out.commit()
    return result, store.read(OUT).to_pylist()
