"""Rows that are asked something else than their problem: judged by a gold of their own, and by their own rewards."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from gradus.data.lake.schema import PLAN, cast_to_schema
from gradus.data.lake.store import Store
from gradus.models.engines.base import Finished
from gradus.models.policy import new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.stages.rollout.groups import Planned
from gradus.tasks.stages.rollout.parents import Parents
from gradus.tasks.stages.rollout.rows import rollouts_table
from tests.tasks.stages.score.scoring import rollouts_of, row, score

GOLD = json.dumps({"final_output": "5\n"})
SAID = '#### 7\n{"final_output": "5"}'


def judged(store: Store, warm: Warm, *rewards: RewardConfig, reward_by: str = "") -> list[dict[str, Any]]:
    golds = ((SAID, None), (SAID, GOLD), ("#### 8", "8"), ("#### 9", "8"), ("#### 9", None))
    rows = [row("p", text, own_gold=gold) for text, gold in golds]
    extra = json.dumps({"golds": ["9"]})
    problems = store.put(
        "problems",
        pa.table({"problem_id": ["p"], "question": ["?"], "answer": ["7"], "domain": ["sum"], "extra": [extra]}),
    )
    config = ScoreConfig(rewards=rewards, max_error_frac=1.0, reward_by=reward_by)
    return [
        {**dict(each["components"]), "correct": each["correct"]}
        for each in score(store, warm, config, rollouts_of(store, *rows), problems)[1]
    ]


def test_a_reward_that_reads_golds_of_rows_judges_those_and_the_others_the_rest(store: Store, warm: Warm) -> None:
    first, second, third, *_ = judged(store, warm, RewardConfig(name="numeric"), RewardConfig(name="predicted"))
    assert first == {"numeric": 1.0, "correct": True}
    assert second == {"predicted": 1.0, "correct": True}
    assert third == {"correct": None}  # its gold is no prediction: an error


def test_without_such_a_reward_all_judge_by_the_gold_of_the_row(store: Store, warm: Warm) -> None:
    found = judged(store, warm, RewardConfig(name="numeric"))
    # The second's gold is no number; 9 is another gold of the problem, and not of the fourth row.
    assert [each.get("numeric") for each in found] == [1.0, None, 1.0, 0.0, 1.0]


def test_such_a_reward_alone_judges_by_the_answer_too(store: Store, warm: Warm) -> None:
    rows = rollouts_of(store, row("p", '{"final_output": "5"}', GOLD))
    found = score(store, warm, ScoreConfig(rewards=(RewardConfig(name="predicted"),)), rows)[1]
    assert [each["reward"] for each in found] == [1.0]


def test_kinds_of_problems_still_route(store: Store, warm: Warm) -> None:
    rewards = (RewardConfig(name="numeric", only=("sum",)), RewardConfig(name="predicted", only=("sum",)))
    first, second, *_ = judged(store, warm, *rewards, reward_by="domain")
    assert (first, second) == ({"numeric": 1.0, "correct": True}, {"predicted": 1.0, "correct": True})


def test_rollouts_carry_the_gold_of_their_plan_and_those_that_continue_them_keep_it() -> None:
    policy = new_policy(tiny_tokenizer(), width=16, layers=1, heads=2, max_positions=256, seed=0)
    problems = pa.table({"problem_id": ["a"], "question": ["1 + 2 ="], "messages": pa.nulls(1)})
    own = {"messages": [{"role": "user", "content": "3 + 4 ="}], "own_gold": "7"}
    rows = [{"problem_id": "a", "n": 1, "group_id": name, **more} for name, more in (("x", own), ("y", {}))]

    def sampled(rows: Sequence[Mapping[str, Any]], stored: pa.Table | None = None) -> pa.Table:
        plan = cast_to_schema(pa.Table.from_pylist([*rows]), PLAN)
        parents = None if stored is None else Parents(stored, plan, policy.prompt_side)
        asked = Planned(plan, problems, policy.prompt_side, RolloutConfig(), 0, 0, parents).asked(
            0, len(rows), "0" * 32
        )
        done = [Finished(index, (1,), (-0.5,), "stop") for index in range(len(rows))]
        pairs = list(zip(asked, done, strict=True))
        return rollouts_table(pairs, engine="e", policy="p", tokenizer=policy.tokenizer, round_=1)

    first = sampled(rows)
    assert first["own_gold"].to_pylist() == ["7", None]
    assert "own_gold" not in sampled(rows[1:]).column_names
    ids = first["rollout_id"].to_pylist()
    again = [{"problem_id": "a", "n": 1, "group_id": name, "parent": name} for name in ids]
    assert sampled(again, first)["own_gold"].to_pylist() == ["7", None]
