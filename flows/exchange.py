"""`import`: rollouts that another system wrote, as artifacts of the lake."""

import time
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict

from pydantic import Field

from gradus.data.exchange.tables import sampled_by, with_lengths
from gradus.flows.loop.inputs import problems_ref
from gradus.flows.stages import alone
from gradus.flows.verbs import gradus_flow
from gradus.tasks.artifacts.resolve import resolve_artifact, write_rows
from gradus.tasks.config.curation import DifficultyConfig
from gradus.tasks.inspect.exchange.rollouts import System, check_source, read_incoming, reader
from gradus.tasks.runtime.calls import Call


class Imported(TypedDict):
    """The result of an import: artifacts by table, counts, and the data that the other system's files lack."""

    rows: int
    scored: int
    files: int
    refused: dict[str, int]
    rollouts: str
    problems: str
    scores: NotRequired[str]
    difficulty: NotRequired[str]
    lost: list[str]
    seconds: float


@gradus_flow("import")
def import_rollouts(
    source: str,
    system: System,
    columns: dict[str, str] | None = None,
    tokenizer: str | None = None,
    policy: str | None = None,
    temperature: Annotated[float, Field(gt=0)] = 1.0,
    correct_at: Annotated[float, Field(allow_inf_nan=False)] | None = None,
    problems: str | None = None,
    out: str | None = None,
) -> Imported:
    """Rollouts of another system: with their problems and, where there are rewards, scores and difficulty.

    Args:
        source: A file, or a folder of files, that the other system wrote.
        system: System that wrote them.
        columns: Names of their columns that mean another one, theirs by the name that is read.
        tokenizer: Folder of the model whose tokenizer makes texts of token ids; the policy's if there is one.
        policy: The policy that sampled them, so that it can learn from them: a folder or a checkpoint artifact.
        temperature: Temperature that they were sampled at, for the policy to learn from them.
        correct_at: Threshold: a row without a verdict of its own is correct if its reward is at least this.
        problems: Problems that the rows of a user's own table name: a file, an artifact or a bundled name.
        out: File to write the difficulty to, with the mean length of the completions of each problem.
    """
    started = time.perf_counter()
    path, model = Path(source), Path(tokenizer) if tokenizer else None
    check_source(path, system, model, policy, problems=problems)
    with alone("import") as session:
        sampler = resolve_artifact(session.store, policy, "checkpoints") if policy else None
        texts = model or (session.store.path(sampler) if sampler else None)
        named = problems_ref(session, problems) if problems else None
        known = session.store.read(named, ["problem_id", "question"]) if named else None
        tables, num_files, refused = read_incoming(path, system, columns or {}, texts, correct_at, known)
        rows = sampled_by(tables["rollouts"], sampler.digest, temperature) if sampler else tables["rollouts"]
        rollouts = session.store.put("rollouts", rows)
        answer: Imported = {
            "rows": rows.num_rows,
            "scored": tables["scores"].num_rows if "scores" in tables else 0,
            "files": num_files,
            "refused": refused,
            "rollouts": str(rollouts),
            "problems": str(named or session.store.put("problems", tables["problems"])),
            "lost": list(reader(system).lost),
            "seconds": 0.0,
        }
        if "scores" in tables:
            scores = session.store.put("scores", tables["scores"], of=rollouts)
            inputs = {"rollouts": [rollouts], "scores": [scores]}
            measured = session.stage(Call("difficulty", DifficultyConfig(max_unjudged_frac=1.0), inputs))
            answer["scores"], answer["difficulty"] = str(scores), str(measured.ref)
            if out:
                write_rows(with_lengths(session.store.read(measured.ref), rows), Path(out))
            if not measured.summary.get("judged"):
                answer["lost"].append("no verdicts, so no pass rates: give --correct-at, or score the rollouts")
        answer["seconds"] = round(time.perf_counter() - started, 3)
        return answer
