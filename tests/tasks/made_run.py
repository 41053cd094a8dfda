"""A training written by hand through the store and the journal: two rounds of three problems, two evaluations.

Every figure below is small enough to be counted by hand; `TEXTS` may be replaced by hostile ones.
"""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.lake.manifest import REPORT
from gradus.data.lake.schema import TABLES, UPDATES, cast_to_schema, sample_key
from gradus.data.lake.store import Ref, Store
from gradus.data.package import package_file
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.journal import Journal
from gradus.tasks.runs.run_settings import write_settings

RUN = "made-1"
QUESTIONS = {"a": "1 + 1 =", "b": "2 + 2 =", "c": "3 + 3 ="}
ANSWERS = {"a": "2", "b": "4", "c": "6"}
TRAIN = {1: {"a": (1.0, 0.0), "b": (0.0, 0.0), "c": (0.0, 0.0)}, 2: {"a": (1.0, 1.0), "b": (1.0, 0.0), "c": (0.0, 0.0)}}
"""Rewards of each problem's two rollouts by round."""
HINTED = {1: {"b": (1.0, 0.0), "c": (0.0, 0.0)}}
"""Rewards of the groups that were tried again with a hint."""
EVALUATED = {0: {"d": (0.0, 0.0), "e": (1.0, 0.0)}, 2: {"d": (1.0, 0.0), "e": (0.0, 0.0)}}
LEVEL = 2


class MadeRun:
    """Writes the run; `texts` are the completions of chosen rollouts, by round, purpose, problem and sample."""

    def __init__(
        self,
        home: Home,
        texts: Mapping[tuple[int, str, str, int], str] | None = None,
        recipe: Mapping[str, Any] | None = None,
    ) -> None:
        self.home = home
        self.texts = texts or {}
        self.store = Store(home.lake)
        self.folder = home.runs / RUN
        self.folder.mkdir(parents=True)
        write_settings(self.folder, {"verb": "train", "seed": 7, "recipe": recipe or {"name": "made"}})
        self.journal = Journal(self.folder)
        self.journal.run_started({"run": RUN, "verb": "train"})
        self._num = 0

    def finish(self) -> None:
        self.journal.run_finished(status="finished")

    def whole(self) -> "MadeRun":
        """Everything: evaluations around two rounds, hints in the first."""
        problems = self.problems("9", {**QUESTIONS, "d": "4 + 4 =", "e": "5 + 5 ="})
        self.policy(0, [])
        self.evaluation(problems, 0)
        for at, rewards in TRAIN.items():
            learnt = self.batch(problems, at, "train", rewards)
            if at in HINTED:
                learnt += self.batch(problems, at, f"hint{LEVEL}", HINTED[at], hint="think")
            self.policy(at, learnt)
        self.evaluation(problems, 2)
        self.finish()
        return self

    def problems(self, digit: str, questions: Mapping[str, str]) -> Ref:
        answers = {**ANSWERS, "d": "8", "e": "10"}
        columns = {
            "problem_id": list(questions),
            "question": list(questions.values()),
            "answer": [answers[name] for name in questions],
            "domain": ["sums"] * len(questions),
        }
        return self._table(Ref("problems", digit * 32), columns, {})

    def batch(
        self, problems: Ref, at: int, purpose: str, rewards: Mapping[str, Sequence[float]], hint: str | None = None
    ) -> list[dict[str, Any]]:
        """Rollouts and scores; return what an update says of the rows."""
        rollouts, scores = self._ref("rollouts"), self._ref("scores")
        level = LEVEL if hint else 0
        keys = [(name, sample) for name, values in rewards.items() for sample in range(len(values))]
        reward = [rewards[name][sample] for name, sample in keys]
        groups = [f"{name}@r{at}h{level}" for name, _ in keys]
        ids = [sample_key(rollouts.digest, f"{group}:{key[1]}") for group, key in zip(groups, keys, strict=True)]
        texts = [self.texts.get((at, purpose, *key), f"{key[0]}{key[1]} of {purpose} {at}") for key in keys]
        num = len(keys)
        sampled = {
            "rollout_id": ids,
            "problem_id": [name for name, _ in keys],
            "group_id": groups,
            "sample": [sample for _, sample in keys],
            "round": [at] * num,
            "completion": texts,
            "prompt_tokens": [[1] * (5 if hint else 3)] * num,
            "completion_tokens": [[1] * (10 * at + sample + 1) for _, sample in keys],
            "logprobs": [[-0.5] * (10 * at + sample + 1) for _, sample in keys],
            "finish_reason": ["stop"] * num,
            "hint_level": [level] * num,
            "hint_text": [hint] * num,
            "policy": [self._checkpoint(at).digest] * num,
        }
        self._table(rollouts, sampled, {"problems": [str(problems)]})
        judged = {
            "rollout_id": ids,
            "problem_id": sampled["problem_id"],
            "reward": reward,
            "correct": [value == 1.0 for value in reward],
            "components": pa.array(
                [[("numeric", value), ("format", 0.5)] for value in reward], pa.map_(pa.string(), pa.float64())
            ),
            "extracted": [text[:8] for text in texts],
            "outcome": ["correct" if value == 1.0 else "wrong" for value in reward],
            "verifier": ["numeric@1"] * num,
        }
        self._table(scores, judged, {"rollouts": [str(rollouts)], "problems": [str(problems)]})
        self.stage("rollout", at, purpose, rollouts)
        self.stage("score", at, purpose, scores)
        return [
            {"rollout_id": id_, "problem_id": name, "advantage": value - 0.5, "weight": 1.0, "mismatch": 0.25 * at}
            for id_, (name, _), value in zip(ids, keys, reward, strict=True)
        ]

    def policy(self, at: int, learnt: Sequence[Mapping[str, Any]]) -> None:
        """A checkpoint with the bundled tokenizer, and with what its update did if there was one."""
        writer = self.store.writer(self._checkpoint(at))
        writer.copy_file("tokenizer.json", package_file("data/samples/policy/tokenizer.json"))
        if learnt:
            out = io.BytesIO()
            pq.write_table(cast_to_schema(pa.Table.from_pylist(list(learnt)), UPDATES), out)
            writer.write_file("rows.parquet", out.getvalue())
            steps = [{"policy/entropy": 0.5 * at, "policy/grad_norm": 1.0}, {"policy/entropy": 1.5 * at}]
            metrics = {"mismatch/kl": 0.125 * at, "policy/entropy": 9.0}
            writer.write_file(REPORT, json.dumps({"steps": steps, "metrics": metrics}).encode())
        writer.commit()
        if learnt:
            self.stage("update", at, "train", self._checkpoint(at))

    def evaluation(self, problems: Ref, at: int) -> None:
        """pass@1 of two problems with two samples each, without an interval worth the name."""
        rewards = EVALUATED[at]
        self.batch(problems, at, "eval", rewards)
        k = [int(sum(values)) for values in rewards.values()]
        columns = {"checkpoint": ["x"] * 2, "suite": ["sums"] * 2, "problem_id": list(rewards), "n": [2, 2], "k": k}
        value = sum(k) / 4
        summary = {"suite": "sums", "pass_at": {"1": {"value": value, "low": value - 0.125, "high": value + 0.125}}}
        ref = self._table(self._ref("evaluations"), columns, {}, {"summary": summary})
        self.stage("evaluate", at, "eval", ref, {"summary": summary})

    def stage(self, stage: str, at: int, purpose: str, output: Ref, report: Any = None) -> None:
        """An attempt of three seconds."""
        attempt = self.journal.stage_started(
            stage=stage, round=at, purpose=purpose, output=str(output), config={}, inputs={}
        )
        self.journal.stage_finished(attempt, status="finished", seconds=3.0, report=report)

    def _checkpoint(self, at: int) -> Ref:
        return Ref("checkpoints", f"{at:x}" * 32)

    def _ref(self, table: str) -> Ref:
        self._num += 1
        return Ref(table, f"{self._num:032x}"[::-1])

    def _table(
        self,
        ref: Ref,
        columns: Mapping[str, Any],
        parents: dict[str, list[str]],
        report: Mapping[str, Any] | None = None,
    ) -> Ref:
        writer = self.store.writer(ref)
        writer.write_table(cast_to_schema(pa.table(dict(columns)), TABLES[ref.table]))
        writer.write_file(REPORT, json.dumps(report or {}).encode())
        writer.commit(parents=parents)
        return ref
