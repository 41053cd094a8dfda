"""A training that begins with tables of an earlier run: what each stage is given, and what is refused."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError, GateError, UsageError
from gradus.data.lake.store import Ref, Store
from gradus.flows.loop.inputs import as_run, run_name
from gradus.flows.loop.round.outcomes import Stored
from gradus.flows.loop.training import train
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.reading import load_recipe
from gradus.tasks.artifacts.beginning import refuse_foreign, refuse_other_policy, refuse_unusable
from gradus.tasks.runtime.calls import Call, Outcome
from tests.flows.recipe.test_guards import START, Rehearsal, recipe

HINTS, DIFFICULTY = Ref("hints", "1" * 8), Ref("difficulty", "d" * 8)
THEIRS = Stored([Ref("rollouts", "2" * 8)], [Ref("scores", "3" * 8)], START.problems)


@dataclass
class Begun(Rehearsal):
    """A rehearsal that notes the stages that ran, and what waves and plans are given."""

    ran: list[str] = field(default_factory=list)
    given: dict[tuple[str, int], dict[str, list[str]]] = field(default_factory=dict)

    def stage(self, call: Call) -> Outcome:
        self.ran.append(call.name)
        if call.name in ("wave", "curate") and call.purpose != "eval":
            self.given[call.name, call.round] = {role: [str(ref) for ref in refs] for role, refs in call.inputs.items()}
        return super().stage(call)


def test_hints_and_difficulty_take_the_place_of_stages_and_rollouts_are_a_round_before_the_first() -> None:
    session = Begun([0.5] * 9)
    waves = ["replay", {"name": "escalate", "levels": [1]}]
    plan = recipe([], rounds=3, waves=waves, update={"max_age": 2}, profile={"n": 2})
    start = replace(START, hints=HINTS, difficulty=DIFFICULTY, earlier=(THEIRS,))
    train(session, plan, start)  # pyright: ignore[reportArgumentType] - has no store
    assert "hint" not in session.ran
    assert session.ran.count("rollout") == 2 + 3 + 6  # evaluations, rounds and waves, and no profile
    assert session.given["curate", 1]["difficulty"] == [str(DIFFICULTY)]
    assert session.given["curate", 2]["difficulty"] != [str(DIFFICULTY)]
    assert session.given["wave", 1]["hints"] == [str(HINTS)]
    replayed = recipe([], rounds=3, waves=["replay"], update={"max_age": 2})
    session = Begun([0.5] * 9)
    train(session, replayed, start)  # pyright: ignore[reportArgumentType] - has no store
    stored = [session.given["wave", index]["stored_rollouts"] for index in (1, 2, 3)]
    assert stored[0] == [str(ref) for ref in THEIRS.rollouts]
    assert (stored[1][0], len(stored[1])) == (str(THEIRS.rollouts[0]), 3)  # and those of round 1, two calls
    assert str(THEIRS.rollouts[0]) not in stored[2]  # older than two updates


def test_hints_from_the_start_are_built_for_the_rounds_that_show_some() -> None:
    fading = {"schedule": "steps", "values": [2, 1, 0], "at": [2, 3]}
    plan = recipe([], rounds=3, curate={"hint_level": fading})
    session = Begun([0.5] * 9)
    train(session, plan, START)  # pyright: ignore[reportArgumentType] - has no store
    assert session.ran.count("hint") == 1
    assert [len(session.given["curate", index].get("hints", [])) for index in (1, 2, 3)] == [1, 1, 0]
    session = Begun([0.5] * 9)
    train(session, recipe([], rounds=1), START)  # pyright: ignore[reportArgumentType] - has no store
    assert "hint" not in session.ran


@pytest.mark.parametrize("asks", [False, True])
def test_a_given_plan_is_the_first_plan_of_every_round(asks: bool) -> None:
    session, given = Begun([0.5] * 9), Ref("plan", "4" * 8)
    start = replace(START, plan=given, asks_hints=asks)
    train(session, recipe([], rounds=2), start)  # pyright: ignore[reportArgumentType] - has no store
    assert [session.given["curate", index]["plan"] for index in (1, 2)] == [[str(given)]] * 2
    assert (session.ran.count("hint"), "hints" in session.given["curate", 2]) == (int(asks), asks)
    session = Begun([0.5] * 9)
    train(session, recipe([], rounds=1), START)  # pyright: ignore[reportArgumentType] - has no store
    assert "plan" not in session.given["curate", 1]


def test_a_phase_with_other_problems_builds_its_own_hints() -> None:
    phases = [{"rounds": 1}, {"rounds": 1, "problems": "bundled:heldout"}]
    own, other = START.problems, Ref("problems", "c" * 8)
    plan = recipe([], rounds=2, waves=[{"name": "escalate", "levels": [1]}], phase=phases)
    for problems, built in (((own, own), 0), ((own, other), 1)):
        session = Begun([0.5] * 9)
        train(session, plan, replace(START, hints=HINTS, phases=problems))  # pyright: ignore[reportArgumentType] - has no store
        assert session.ran.count("hint") == built
        assert session.given["wave", 1]["hints"] == [str(HINTS)]
        assert (session.given["wave", 2]["hints"] == [str(HINTS)]) is not bool(built)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ({"begin.hints": "hints/abcd"}, "there is no artifact hints/abcd"),
        (
            {"begin.hints": "rows.jsonl", "escalate": []},
            "begin.hints: no wave or measure of the recipe reads hints; add a wave",
        ),
        (
            {"curate.hint_level": 4},
            "curate.hint_level = 4, and hint.fractions has 3 levels; lower it, or add fractions",
        ),
        ({"begin.hints": "nowhere.jsonl"}, "begin.hints: nowhere.jsonl is neither a file nor an artifact"),
        ({"begin.rollouts": ["rows.jsonl"]}, "begin.rollouts: no wave takes up rollouts"),
        ({"begin.rollouts": ["rows.jsonl"], "waves": ["replay"]}, "begin.rollouts: they need begin.scores"),
        ({"begin.scores": ["rows.jsonl"]}, "begin.scores: they need begin.rollouts"),
        ({"begin.hint": "rows.jsonl"}, "there is no setting begin.hint; did you mean begin.hints"),
    ],
)
def test_what_no_stage_would_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"problem_id": "a"}\n')
    with pytest.raises((UsageError, BadInputError)) as refused:
        check_recipe(load_recipe("demo", sets), tmp_path / "lake")
    assert said in f"{refused.value}; {refused.value.hint}"


def test_a_file_to_begin_with_is_part_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "difficulty.jsonl"
    file.write_text("1")
    plain = load_recipe("demo")
    assert "begin" not in plain.model_dump(mode="json")
    first = run_name(as_run(load_recipe("demo", {"begin.difficulty": str(file)})))
    file.write_text("2")
    assert len({first, run_name(plain), run_name(as_run(load_recipe("demo", {"begin.difficulty": str(file)})))}) == 3


def stored(store: Store, *policies: str, problem: str = "a", scored: int = 9) -> tuple[list[Ref], list[Ref], Ref]:
    names = [f"r{index}" for index in range(len(policies))]
    rows = {"rollout_id": names, "problem_id": [problem] * len(names), "group_id": ["g"] * len(names)}
    rollouts = store.put("rollouts", pa.table({**rows, "completion": ["x"] * len(names), "policy": [*policies]}))
    scores = {
        **{key: rows[key][:scored] for key in ("rollout_id", "problem_id")},
        "reward": [1.0] * len(names[:scored]),
    }
    problems = store.put("problems", pa.table({"problem_id": ["a"], "question": ["1 + 1"], "answer": ["2"]}))
    return [rollouts], [store.put("scores", pa.table(scores))], problems


def checkpoint(store: Store, digit: str, before: Ref | None = None) -> Ref:
    writer = store.writer(Ref("checkpoints", digit * 32))
    writer.commit(parents={"policy": [str(before)]} if before else {})
    return writer.ref


def test_rollouts_that_the_first_round_could_not_take_up_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = checkpoint(store, "a")
    second = checkpoint(store, "b", first)
    third = checkpoint(store, "c", second)
    rollouts, scores, problems = stored(store, first.digest, "elsewhere")
    refuse_unusable(store, rollouts, scores, problems, third, 2)
    refuse_unusable(store, rollouts, scores, problems, first, 0)
    with pytest.raises(BadInputError, match=r"no rollout was sampled by checkpoints/c+, or by one of the 1 policies"):
        refuse_unusable(store, rollouts, scores, problems, third, 1)
    *odd, _ = stored(store, first.digest, problem="z")
    with pytest.raises(BadInputError, match=r"begin.rollouts: rollout r0 is of a problem"):
        refuse_unusable(store, *odd, problems, first, 0)
    *odd, _ = stored(store, first.digest, first.digest, scored=1)
    with pytest.raises(BadInputError, match=r"begin.rollouts: rollout r1 has no score in begin.scores"):
        refuse_unusable(store, *odd, problems, first, 0)
    judged = store.read(rollouts[0]).append_column("use", pa.array(["judge", None]))
    with pytest.raises(BadInputError, match=r"begin.rollouts: rollout r0 is of another use than learning"):
        refuse_unusable(store, [store.put("rollouts", judged)], scores, problems, first, 0)
    hints = store.put("difficulty", pa.table({"problem_id": ["z"], "n": [1], "k": [1]}))
    with pytest.raises(BadInputError, match=r"begin.difficulty: none of the 1 rows of difficulty/"):
        refuse_foreign(store, hints, problems)


def test_difficulty_of_another_policy_is_a_gate(tmp_path: Path) -> None:
    store = Store(tmp_path)
    older = checkpoint(store, "a")
    newest, other = checkpoint(store, "b", older), "c" * 32

    def measured(*policies: Sequence[str | None]) -> Ref:
        rows = [{"problem_id": str(at), "n": 1, "k": 0, "policies": each} for at, each in enumerate(policies)]
        return store.put("difficulty", pa.Table.from_pylist(rows))

    named: list[list[str | None]] = [[newest.digest], [other, older.digest], [None], []]
    for rows in named:
        refuse_other_policy(store, measured(rows), newest)
    refuse_other_policy(store, measured([other], [older.digest]), newest)
    with pytest.raises(GateError) as refused:
        refuse_other_policy(store, measured([newest.digest, other], [other], []), newest)
    assert refused.value.message.endswith(
        f"was measured with the policy cccccccc, and the training begins with {newest.digest[:8]}"
    )
    assert "or set begin.any_policy = true" in str(refused.value.hint)
