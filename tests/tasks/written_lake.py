"""A home written by hand, with artifacts of any name, in which ids of rollouts repeat between artifacts."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.lake.manifest import FILE_NAME, REPORT, FileEntry, Manifest, sha256_file
from gradus.data.lake.store import Ref

Parents = Mapping[str, Sequence[str]]


class WrittenHome:
    """Writes artifacts and journals by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def artifact(
        self, ref: str, rows: list[dict[str, Any]] | pa.Table, parents: Parents | None = None, **report: Any
    ) -> str:
        """One shard, a report and the manifest, all below `lake/<table>/<digest>`."""
        shard = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
        folder = self.root / "lake" / ref
        folder.mkdir(parents=True)
        pq.write_table(shard, folder / "part-00000.parquet")
        (folder / REPORT).write_text(json.dumps(report))
        entries = [FileEntry(name=REPORT, sha256=sha256_file(folder / REPORT), bytes=(folder / REPORT).stat().st_size)]
        part = folder / "part-00000.parquet"
        size, digest = part.stat().st_size, sha256_file(part)
        entries.append(FileEntry(name=part.name, sha256=digest, bytes=size, rows=shard.num_rows))
        named = Ref.parse(ref)
        given = {role: list(refs) for role, refs in (parents or {}).items()}
        made = Manifest(table=named.table, digest=named.digest, schema_version=2, parents=given, files=tuple(entries))
        (folder / FILE_NAME).write_bytes(made.sealed().to_bytes())
        return ref

    def rollouts(self, digit: str, names: Mapping[str, str], parents: Parents | None = None) -> str:
        """Completions by the name of the rollout, all of problem p."""
        rows = [
            {
                "rollout_id": name,
                "problem_id": "p",
                "group_id": name.partition(":")[0],
                "round": 0,
                "completion": text,
                "completion_tokens": [1] * len(text),
                "finish_reason": "stop",
                "hint_level": 0,
            }
            for name, text in names.items()
        ]
        return self.artifact(f"rollouts/{digit * 32}", rows, parents)

    def scores(self, digit: str, rollouts: str, rewards: Mapping[str, float], **report: Any) -> str:
        """Rewards by the name of the rollout; no lineage where no rollouts are named."""
        values, number = list(rewards.values()), len(rewards)
        parts = pa.array([[("numeric", value)] for value in values], pa.map_(pa.string(), pa.float64()))
        table = pa.table(
            {
                "rollout_id": list(rewards),
                "problem_id": ["p"] * number,
                "reward": pa.array(values, pa.float64()),
                "correct": [value == 1.0 for value in values],
                "components": parts,
                "outcome": ["correct" if value == 1.0 else "wrong" for value in values],
            }
        )
        return self.artifact(f"scores/{digit * 32}", table, {"rollouts": [rollouts]} if rollouts else {}, **report)

    def run(self, name: str, verb: str, events: Sequence[Mapping[str, Any]]) -> None:
        """A run's settings and its journal, one event a second."""
        folder = self.root / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"verb": verb, "seed": 3}))
        lines = [json.dumps({"time": 1_700_000_000.0 + second, **event}) for second, event in enumerate(events)]
        (folder / "events.jsonl").write_text("".join(line + "\n" for line in lines))


STARTED = {"event": "run_started"}
FINISHED = {"event": "run_finished", "status": "finished"}


def made(
    output: str, round_: int, purpose: str, *, status: str = "finished", attempt: str = ""
) -> list[dict[str, Any]]:
    """The events of a stage that was computed; without an end where it was killed."""
    stage = {"rollouts": "rollout", "scores": "score", "checkpoints": "update"}[output.partition("/")[0]]
    name = attempt or f"{stage}-{round_}-{purpose}-{output[-4:]}"
    label = {"attempt": name, "stage": stage, "round": round_, "purpose": purpose}
    begun = {"event": "stage_started", **label, "output": output, "config": {}, "inputs": {}}
    ended = {"event": "stage_finished", "attempt": name, "status": status, "seconds": 2.0, "error": ""}
    return [begun] if status == "killed" else [begun, ended]


def reused(output: str, round_: int, purpose: str) -> list[dict[str, Any]]:
    """The event of a stage whose artifact was there."""
    stage = {"rollouts": "rollout", "scores": "score"}[output.partition("/")[0]]
    return [{"event": "stage_reused", "stage": stage, "round": round_, "purpose": purpose, "output": output}]
