"""Waves that continue rollouts or take stored ones up again: what they plan, against cuts and draws by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradus.components.chosen import WaveConfig
from gradus.components.rows import Lists
from gradus.data.curation.continued import joined, replaced_parents
from gradus.data.curation.round import Round, RoundRows, WaveError, round_of
from gradus.data.curation.waves.continuing import branch, cut_points, lowest, rethink, values
from gradus.data.curation.waves.replaying import replay
from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.rollout import PlanningConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.identity.loading import load
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.round_rows import stored_rows
from gradus.tasks.stages.wave import run

ROOT = Path(__file__).parents[3]
LOGPROBS = [[-0.1, -3.0, -0.2], [-0.5, -0.6], [-9.0], [], [-0.4, None, -0.3]]


def first_round() -> Round:
    """Five rollouts of two problems: a (three, one of which was cut off) and b (one that failed)."""
    return round_of(
        pa.table(
            {
                "rollout_id": ["a0", "a1", "a2", "b0", "b1"],
                "problem_id": ["a", "a", "a", "b", "b"],
                "group_id": ["0", "0", "0", "1", "1"],
                "group": [0, 0, 0, 1, 1],
                "hint_level": pa.array([0, 0, 0, 2, 2], pa.int32()),
                "hint_text": [None, None, None, "so", "so"],
                "finish_reason": ["stop", "stop", "length", "error", "stop"],
                "reward": [1.0, 1.0, 1.0, 0.0, 0.0],
                "logprobs": pa.array(LOGPROBS, pa.list_(pa.float32())),
            }
        ),
        earlier=earlier(),
    )


def earlier() -> RoundRows:
    """Groups of rounds 1 and 2: x half right, y one in four, z without variance."""
    names = [*"xxxx", *"yyyy", *"zz"]
    return RoundRows(
        pa.table(
            {
                "rollout_id": [f"{name}{i}" for i, name in enumerate(names)],
                "problem_id": names,
                "group_id": [f"{name}@r" for name in names],
                "group": [*[0] * 4, *[1] * 4, *[2] * 2],
                "hint_level": pa.array([0] * 4 + [1] * 6, pa.int32()),
                "round": pa.array([1] * 4 + [2] * 6, pa.int32()),
                "age": [2] * 4 + [1] * 6,
                "reward": [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0],
            }
        )
    )


def columns(planned: Any) -> dict[str, list[Any]]:
    return {name: found.to_pylist() for name, found in planned.columns.items()}


def test_a_share_of_the_finished_rollouts_is_rethought_in_its_parents_place() -> None:
    planned = rethink(first_round(), np.random.default_rng(0), frac=0.7, phrase="hm")  # 2 of the 3 that ended
    assert planned is not None
    found = columns(planned)
    assert set(found["parent"]) < {"a0", "a1", "b1"}
    assert len(found["parent"]) == 2
    same = ("branch_at", "inserted", "inherits", "replaces", "n")
    assert [found[name] for name in same] == [[-1, -1], ["\nhm\n"] * 2, ["trained"] * 2, [True] * 2, [1, 1]]
    of = {"a0": "0", "a1": "0", "b1": "1"}
    assert found["group"] == [of[name] for name in found["parent"]]
    hints = {"a0": (0, None), "a1": (0, None), "b1": (2, "so")}
    assert list(zip(found["hint_level"], found["hint_text"], strict=True)) == [hints[name] for name in found["parent"]]
    assert rethink(first_round(), np.random.default_rng(0), frac=0.3) is None  # 0.9 of a rollout


def test_branches_begin_at_the_least_certain_token_of_the_least_certain_rollout() -> None:
    lists = Lists(np.array([-0.1, -3.0, -0.2, -0.4, np.nan]), np.array([0, 3, 3, 5]))
    place, least = lowest(lists)
    assert (place.tolist(), least.tolist()) == ([1, 0, 0], [-3.0, np.inf, -0.4])
    planned = branch(first_round(), np.random.default_rng(0), n=3)
    assert planned is not None
    found = columns(planned)
    assert (found["parent"], found["branch_at"], found["group"]) == (["a2", "b1"], [0, 0], ["0", "1"])
    assert found["n"] == [3, 3]
    assert found["reason"] == ["token 0 had probability 0.000", "token 0 had probability 0.670"]
    more = branch(first_round(), np.random.default_rng(0), per_group=2)
    assert more is not None
    assert list(zip(*(columns(more)[name] for name in ("parent", "branch_at")), strict=True)) == [
        ("a0", 1),  # -3.0 is the second lowest of its group
        ("a2", 0),
        ("b1", 0),
    ]


def test_values_are_sampled_from_every_second_cut_point() -> None:
    # Below 0.9 are log-probs under -0.105: of -0.2, -0.05, -0.3, -0.4, -0.5 the places 0, 2, 3 and 4.
    assert cut_points(np.array([-0.2, -0.05, -0.3, -0.4, -0.5]), 0.9, 2).tolist() == [2, 4]
    assert cut_points(np.array([-0.2, -0.3]), 0.9, 1).tolist() == [1]  # place 0 is the prompt's own value
    assert cut_points(np.array([np.nan, -0.01]), 0.9, 1).tolist() == []
    planned = values(first_round(), np.random.default_rng(0), n=2, every=1)
    assert planned is not None
    found = columns(planned)
    assert list(zip(found["parent"], found["branch_at"], found["boundary"], strict=True)) == [
        ("a0", 1, 0),
        ("a0", 2, 1),
        ("a1", 1, 0),
        ("b1", 2, 0),
    ]
    assert (set(found["inherits"]), "group" in found) == ({"context"}, False)


@pytest.mark.slow
def test_replay_draws_informative_groups_by_their_advantages_and_takes_them_up_whole() -> None:
    # |A| of x: 4 times 0.5 / 0.577; of y: (0.75 + 3 * 0.25) / 0.5: weights 3.464 and 3. Both groups here are flat.
    drawn = [replay(first_round(), np.random.default_rng(seed), groups=1) for seed in range(200)]
    found = [columns(each) for each in drawn if each is not None]
    names = [each["recall"][0][0] for each in found]
    assert names.count("x") + names.count("y") == 200
    assert names.count("x") / 200 == pytest.approx(3.464 / 6.464, abs=0.1)
    both = replay(first_round(), np.random.default_rng(0))
    assert both is not None
    every = columns(both)
    assert every["recall"] == [f"{name}{i}" for i, name in enumerate("xxxxyyyy")]
    assert (every["n"], every["together"]) == ([1] * 8, ["x@r"] * 4 + ["y@r"] * 4)
    assert every["hint_level"] == [0] * 4 + [1] * 4
    assert every["reason"][4] == "replayed from round 2: advantage 1.500"
    assert both.problem_id.to_pylist() == [*"xxxx", *"yyyy"]
    assert (
        joined(pa.array([f"n{i}" for i in range(8)]), both.columns["together"]).to_pylist() == ["n0"] * 4 + ["n4"] * 4
    )


def test_stored_rollouts_by_age_and_groups_of_ones_own() -> None:
    round_ = first_round()
    assert round_.stored(max_age=1)["rollout_id"].tolist() == [f"{n}{i}" for i, n in enumerate("xxxxyyyyzz")][4:]
    planned = round_.plan(like=np.array([0, 3, 4]), recall=[-1, None, "z8"], together=[7, -1, 7])
    found = columns(planned)
    assert (found["recall"], found["n"], found["together"]) == ([None, None, "z8"], [None, None, 1], [7, None, 7])
    inner = columns(round_.plan(recall=[0, 4]))
    assert (inner["recall"], inner["together"], inner["hint_text"]) == (["a0", "b1"], ["0", "1"], [None, "so"])
    assert columns(round_.plan(parent=["y4"], replaces=True))["group"] == [None]  # its group is of another round


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"parent": [5]}, "it names row 5 of 5"),
        ({"parent": [-2]}, "it names row -2 of 5"),
        ({"recall": ["q"]}, "it names rollout q, which is neither of this round nor among the stored"),
        ({"parent": [0, -1]}, "it plans a row that builds on no rollout: give like= or problems= too"),
        ({"parent": [0], "branch_at": "end"}, "its values of 'branch_at' are no int32"),
    ],
)
def test_a_rollout_that_is_not_there_is_refused_by_name(named: dict[str, Any], said: str) -> None:
    with pytest.raises(WaveError, match=said):
        first_round().plan(**named)


def test_stored_rollouts_are_asked_for_by_those_who_declare_it() -> None:
    rows = pa.table({"problem_id": ["a"], "group": [0]})
    with pytest.raises(WaveError, match='add "stored" to its `needs`'):
        round_of(rows).stored()
    assert WaveConfig.model_validate("replay").reads("stored")
    assert not WaveConfig.model_validate("rethink").reads("stored")


def policies(store: Store, num: int) -> list[Ref]:
    """A policy and those that were made of it, one after the other."""
    made: list[Ref] = []
    for number in range(num):
        parents = {"policy": [str(made[-1])]} if made else {}
        made.append(store.adopt_files({"config.json": str(number).encode()}, parents))
    return made


def scored(store: Store, rows: list[dict[str, Any]], rewards: list[float | None]) -> tuple[Ref, Ref]:
    names, problems = ([row[name] for row in rows] for name in ("rollout_id", "problem_id"))
    scores = {"rollout_id": names, "problem_id": problems, "reward": pa.array(rewards, pa.float64())}
    correct = pa.array([None if reward is None else reward > 0 for reward in rewards], pa.bool_())
    return store.put("rollouts", pa.Table.from_pylist(rows)), store.put(
        "scores", pa.table({**scores, "correct": correct})
    )


def stored_round(store: Store) -> tuple[list[Ref], tuple[Ref, Ref]]:
    """Rollouts of three policies: the oldest's, one that failed, one taken up again, one that another replaced."""
    made = policies(store, 3)

    def row(name: str, age: int, **more: Any) -> dict[str, Any]:
        known = {"problem_id": "a", "group_id": "g", "policy": made[2 - age].digest, "completion": "x", "round": 1}
        return {"rollout_id": name, **known, "parent": None, "replaces": None, "recall": None, **more}

    rows = [
        row("old", 2),
        row("one", 1),
        row("failed", 1),
        row("again", 1, recall="k"),
        row("short", 1),
        row("long", 0, parent="short", replaces=True),
        row("other", 0, policy="f" * 32),
    ]
    return made, scored(store, rows, [1.0, 0.0, None, 1.0, 0.0, 1.0, 1.0])


def test_what_is_stored_by_the_age_of_its_policy_and_without_what_was_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made, (rollouts, scores) = stored_round(store)
    inputs = {"stored_rollouts": (rollouts,), "stored_scores": (scores,), "sampler": (made[2],)}

    def ids(max_age: int) -> list[tuple[str, int]]:
        context = StageContext(
            store, inputs, store.writer(Ref("plan", "e" * 32)), 0, Warm(), lambda frac, text="": None
        )
        found = stored_rows(context, max_age)
        return list(zip(found["rollout_id"].tolist(), found["age"].tolist(), strict=True))

    assert ids(2) == [("old", 2), ("one", 1), ("long", 0)]
    assert ids(1) == [("one", 1), ("long", 0)]
    table = store.read(rollouts).append_column("reward", pa.array([0.0] * 5 + [None, 0.0], pa.float64()))
    assert not replaced_parents(table).any()  # the row that would take its place was not judged


USERS = """
from gradus.components import component

@component("wave", needs=("rollout_id", "stored"))
def mine(round, rng):
    '''Take up one again.'''
    return round.plan(recall=["old"], budget=3)
"""


def test_a_rollout_that_is_too_old_is_refused_by_the_wave_and_one_that_is_not_is_planned(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made, (rollouts, scores) = stored_round(store)
    (tmp_path / "mine.py").write_text(USERS)
    now, judged = scored(store, [{"rollout_id": "now", "problem_id": "a", "group_id": "h", "completion": "y"}], [1.0])
    tables = {
        "problems": pa.table({"problem_id": ["a"], "question": ["1+1="]}),
        "plan": pa.table({"problem_id": ["a"], "n": [1], "group_id": ["h"]}),
    }
    inputs = {role: (store.put(role, table),) for role, table in tables.items()}
    inputs |= {"rollouts": (now,), "scores": (judged,), "sampler": (made[2],)}
    inputs |= {"stored_rollouts": (rollouts,), "stored_scores": (scores,)}

    def plan(max_age: int) -> tuple[list[dict[str, Any]], Any]:
        writer = store.writer(Ref("plan", f"{max_age:032x}"))
        facts = {"round": 2, "wave": 1, "call": 0}
        config = PlanningConfig.model_validate({"wave": f"{tmp_path / 'mine.py'}:mine", "max_age": max_age})
        result = run(StageContext(store, inputs, writer, 13, Warm(), lambda frac, text="": None, facts), config)
        writer.commit()
        return store.read(writer.ref).to_pylist(), result

    with pytest.raises(BadInputError, match="mine: it names rollout old, which is neither of this round"):
        plan(1)
    ((row,), result) = plan(2)
    assert (row["problem_id"], row["recall"], row["n"], row["budget"]) == ("a", "old", 1, 3)
    assert (row["plan_id"], row["group_id"]) == ("a@r2h0.1", "a@r2h0.1")
    assert result.summary == {"groups": 1, "skipped": {}, "from_stored": 1}


def test_the_example_of_the_page_on_components_runs_as_it_stands(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "extending.md").read_text().partition("## Rows that continue others")[2]
    (tmp_path / "methods.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    wave = load(WaveConfig.model_validate({"name": f"{tmp_path / 'methods.py'}:second_look", "share": 1.0}))
    known = {"problem_id": ["a", "a"], "group": [0, 0], "correct": [0.0, 1.0], "finish_reason": ["stop", "stop"]}
    before = earlier().table.append_column("correct", pa.array([1.0, *[0.0] * 8, 1.0]))
    first = wave(round_of(pa.table(known), earlier=RoundRows(before)), np.random.default_rng(0))
    assert (columns(first)["parent"], columns(first)["replaces"]) == (["0"], [True])
    second = wave(round_of(pa.table(known), earlier=RoundRows(before), calls=1), np.random.default_rng(0))
    assert columns(second)["recall"] == ["x0", "z9"]
