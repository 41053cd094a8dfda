"""The name of a stage's artifact goes by the content of what the stage reads, and by nothing else of its inputs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.components.settings import Config
from gradus.data.lake.manifest import identity_digest
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.learning import SCORE_COLUMNS, UpdateConfig, WarmstartConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.runtime.calls import Call, planned

POLICY = Ref("checkpoints", "ab" * 16)
PROBLEM = {"problem_id": "a", "question": "1 + 1 =", "answer": "2"}
PLAN = {"problem_id": "a", "group_id": "a@r1h0", "n": 2, "seed": 7, "reason": "pass rate 1/2"}
SCORE = {"rollout_id": "a:0", "problem_id": "a", "reward": 1.0, "correct": True, "verifier": "mine@1"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def put(store: Store, table: str, *rows: Mapping[str, Any]) -> Ref:
    return store.put(table, pa.Table.from_pylist(list(rows)))


def named(store: Store, stage: str, config: Config, inputs: Mapping[str, Sequence[Ref]]) -> str:
    return planned(store, Call(stage, config, inputs), run="", seed=1).output


def rollout(store: Store, problem: Mapping[str, Any], plan: Mapping[str, Any] = PLAN) -> str:
    inputs = {"plan": [put(store, "plan", plan)], "problems": [put(store, "problems", problem)], "policy": [POLICY]}
    return named(store, "rollout", RolloutConfig(), inputs)


def test_rollouts_hang_on_what_reaches_the_prompt(store: Store) -> None:
    wanted = rollout(store, PROBLEM)
    assert rollout(store, {**PROBLEM, "answer": "3", "domain": "sums"}) == wanted
    assert rollout(store, PROBLEM, {**PLAN, "reason": "pass rate 2/2"}) == wanted
    others = [
        rollout(store, {**PROBLEM, "question": "1 + 2 ="}),
        rollout(store, {**PROBLEM, "messages": [{"role": "user", "content": "1 + 1 ="}]}),
        *(
            rollout(store, PROBLEM, {**PLAN, **change})
            for change in ({"n": 3}, {"seed": 8}, {"hint_text": "2"}, {"max_tokens": 9}, {"temperature": 0.5})
        ),
    ]
    assert len({wanted, *others}) == 8


def update(store: Store, *scores: Mapping[str, Any]) -> str:
    return named(store, "update", UpdateConfig(), {"scores": [put(store, "scores", *scores)], "policy": [POLICY]})


def test_an_update_hangs_on_rewards_and_verdicts(store: Store) -> None:
    wanted = update(store, SCORE)
    assert update(store, {**SCORE, "verifier": "mine@2", "extracted": "2", "outcome": "correct"}) == wanted
    others = [update(store, {**SCORE, **change}) for change in ({"reward": 0.5}, {"correct": False}, {"reward": None})]
    assert len({wanted, *others}) == 4


def test_what_learns_from_solutions_hangs_on_them_and_on_answers_that_its_template_writes(store: Store) -> None:
    def made(problem: Mapping[str, Any], **settings: str) -> str:
        config = WarmstartConfig.model_validate(settings)
        return named(store, "warmstart", config, {"problems": [put(store, "problems", problem)], "policy": [POLICY]})

    worked = {**PROBLEM, "solution": "1 + 1 = 2"}
    golds = ({"answer": "3"}, {"answer_given": "2.0"})
    for template, num_golds in (("{solution}", 0), ("{solution} #### {answer}", 2)):
        wanted = made(worked, template=template)
        assert made({**worked, "domain": "sums", "source": "mine", "extra": "{}"}, template=template) == wanted
        changes = ({"question": "1 + 2 ="}, {"solution": "2"}, {"messages": [{"role": "user", "content": "1 + 1 ="}]})
        assert wanted not in [made({**worked, **change}, template=template) for change in changes]
        assert [made({**worked, **change}, template=template) != wanted for change in golds].count(True) == num_golds


def test_how_rows_are_divided_into_files_does_not_count(store: Store) -> None:
    rows = [{**SCORE, "rollout_id": f"a:{index}"} for index in range(3)]
    divided = store.writer(Ref("scores", identity_digest({"divided": True})))
    for index, part in enumerate((rows[:1], rows[1:])):
        divided.write_table(pa.Table.from_pylist(part), index)
    divided.commit(identity={"divided": True})
    columns = SCORE_COLUMNS
    assert store.content_key(divided.ref, columns) == store.content_key(put(store, "scores", *rows), columns)
    assert store.content_key(divided.ref) != store.content_key(put(store, "scores", *rows))


def test_scores_that_were_written_again_are_read_again(store: Store) -> None:
    ref, columns = put(store, "scores", SCORE), SCORE_COLUMNS
    before = store.content_key(ref, columns)
    identity = store.manifest(ref).identity
    store.discard(ref)
    writer = store.writer(ref)
    writer.write_table(pa.Table.from_pylist([{**SCORE, "reward": 0.0}]))
    writer.commit(identity=identity)
    assert store.content_key(ref, columns) != before
