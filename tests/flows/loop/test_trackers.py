"""Trackers in the loop: which rows each stage reads, also after a guard that goes back; and what is refused."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.store import Ref, Store
from gradus.flows.loop.inputs import as_run, run_name
from gradus.flows.loop.training import train
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.reading import load_recipe
from gradus.tasks.artifacts.beginning import foreign_rows, start_ref
from gradus.tasks.runtime.calls import Call, Outcome
from tests.flows.recipe.test_guards import EVERY_ROUND, START, Rehearsal, recipe

OWN = """
import numpy as np
from gradus.components import component
from gradus.data.curation.results import selection

@component("tracker", by=BY, columns=("value",), needs=("reward", "spo.value"))
def mine(before, round, *, rate: float = 0.5):
    return {}

@component("filter", needs=("NEEDS",))
def low(rows):
    return selection(rows.num_rows, [])

@component("tracker", needs=("reward",))
def empty(before, round):
    return {}

@component("tracker", columns=("value",))
def policy(before, round):
    return {}
"""
TRACKED = {"trackers": ["spo", "beta_posterior"], "curate": {"sampler": "spo"}}


@dataclass
class Remembering(Rehearsal):
    """A rehearsal that notes the rows of trackers that each stage is given, by stage and round."""

    seen: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    before: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def stage(self, call: Call) -> Outcome:
        outcome = super().stage(call)
        if call.name == "shape":
            self.seen[call.name, call.round] = [*map(str, call.inputs["trackers"]), str(call.facts["round"])]
        if call.name in ("curate", "tracker") and not call.purpose.startswith("eval"):
            who = call.name if call.purpose == "train" else call.purpose
            self.seen[who, call.round] = [str(ref) for ref in call.inputs["trackers"]]
            self.before[who, call.round] = [str(ref) for ref in call.inputs.get("before", [])]
        if call.name == "tracker":
            assert {"rollouts", "scores", "plan", "problems", "difficulty", "before", "trackers"} == set(call.inputs)
            return replace(outcome, ref=rows_after(call.purpose, call.round))
        return outcome


def test_hints_that_read_a_tracker_are_built_in_every_round_and_others_once(tmp_path: Path) -> None:
    text = '@component("hint", needs=(NEEDS))\ndef told(problem, fraction):\n    return "x"\n'
    (tmp_path / "told.py").write_text(
        "from gradus.components import component\n\n" + text.replace("NEEDS", '"spo.value",')
    )
    (tmp_path / "plain.py").write_text("from gradus.components import component\n\n" + text.replace("NEEDS", ""))

    @dataclass
    class Hinting(Remembering):
        hinted: dict[int, list[str]] = field(default_factory=dict)
        shown: dict[int, str] = field(default_factory=dict)

        def stage(self, call: Call) -> Outcome:
            found = super().stage(call)
            if call.name == "hint":
                read = [*call.inputs.get("difficulty", []), *call.inputs.get("trackers", [])]
                self.hinted[call.round] = [str(ref) for ref in read]
            if call.name == "wave":
                self.shown[call.round] = bytes.fromhex(call.inputs["hints"][0].digest).decode()
            return found

    body: dict[str, Any] = {"escalate": [1], "trackers": ["spo"], "rounds": 2}
    session = Hinting([0.5] * 9)
    plan = recipe([], hint={"strategy": f"{tmp_path}/told.py:told"}, **body)
    train(session, plan, START)  # pyright: ignore[reportArgumentType] - has no store
    assert session.hinted[1] == []  # neither a profile nor a row of the tracker
    assert session.hinted[2] == [session.difficulty[2], str(rows_after("spo", 1))]
    assert session.shown == {1: "hint-1-train", 2: "hint-2-train"}
    session = Hinting([0.5] * 9)
    plan = recipe([], hint={"strategy": f"{tmp_path}/plain.py:told"}, **body)
    train(session, plan, START)  # pyright: ignore[reportArgumentType] - has no store
    assert session.hinted == {0: []}
    assert session.shown == dict.fromkeys((1, 2), "hint-0-train")


def rows_after(name: str, index: int) -> Ref:
    return Ref("trackers", f"{name}-{index}".encode().hex()[:64].ljust(8, "0"))


def rehearsed(plan: Recipe, starts: Mapping[str, Ref] = {}, entropy: list[float] | None = None) -> Remembering:
    session = Remembering(entropy or [0.5] * 9, [0.1, 0.4, 0.3, 0.0, 0.2, 0.1, 0.1])
    train(session, plan, replace(START, trackers=starts))  # pyright: ignore[reportArgumentType] - has no store
    return session


def test_each_round_reads_what_trackers_kept_after_the_one_before_and_only_what_is_needed() -> None:
    session = rehearsed(recipe([], rounds=3, **TRACKED))
    kept = {index: [str(rows_after("spo", index))] for index in (1, 2)}
    assert [session.seen["curate", index] for index in (1, 2, 3)] == [[], kept[1], kept[2]]
    assert [session.before["spo", index] for index in (1, 2, 3)] == [[], kept[1], kept[2]]
    assert session.before["beta_posterior", 3] == [str(rows_after("beta_posterior", 2))]
    assert session.seen["spo", 3] == []  # it reads no others
    begun = rehearsed(recipe([], rounds=1, **TRACKED), {"spo": rows_after("spo", 9)})
    assert begun.seen["curate", 1] == begun.before["spo", 1] == [str(rows_after("spo", 9))]


def test_the_batch_of_a_round_reads_what_trackers_kept_before_it() -> None:
    session = rehearsed(recipe([], rounds=3, **TRACKED, update={"advantage": "spo"}))
    kept = [[], *([str(rows_after("spo", index))] for index in (1, 2))]
    assert [session.seen["shape", index] for index in (1, 2, 3)] == [
        [*kept[index], str(index + 1)] for index in range(3)
    ]
    assert not [who for who, _ in rehearsed(recipe([], rounds=1, **TRACKED)).seen if who == "shape"]


def test_a_guard_that_goes_back_restores_the_trackers_of_the_round_that_it_goes_back_to() -> None:
    guard = {"metric": "policy/entropy", "min": 0.05, "then": "back", "changes": {"update.lr": 3e-5}}
    session = rehearsed(
        recipe([guard], rounds=5, evaluate=EVERY_ROUND, **TRACKED), entropy=[0, 0.9, 0.5, 0.04, 0.9, 0.9]
    )
    after_first = [str(rows_after("spo", 1))]  # round 1 is the best before round 3
    assert session.seen["curate", 3] == [str(rows_after("spo", 2))]
    assert session.seen["curate", 4] == session.before["spo", 4] == session.seen["curate", 2] == after_first
    assert session.seen["curate", 5] == [str(rows_after("spo", 4))]


def test_a_round_made_ahead_reads_what_the_round_before_gathered() -> None:
    session = rehearsed(recipe([], rounds=3, overlap=1, **TRACKED))
    assert [session.seen["curate", index] for index in (2, 3)] == [[str(rows_after("spo", i))] for i in (1, 2)]


def test_a_recipe_without_trackers_is_the_run_that_it_was() -> None:
    plain = load_recipe("demo")
    assert "trackers" not in plain.model_dump(mode="json")
    assert "tracked" not in plain.curate.model_dump(mode="json")
    assert run_name(load_recipe("demo", ["trackers=[]"])) == run_name(plain)


def own(folder: Path, need: str = "mine.value", by: str = '("problem_id",)') -> str:
    (folder / "own.py").write_text(OWN.replace("NEEDS", need).replace("BY", by))
    return str(folder / "own.py")


@pytest.mark.parametrize(
    ("trackers", "need", "by", "said"),
    [
        (["spo"], "mine.value", "()", "filter own.py:low needs mine.value, and the recipe has no tracker mine; add it"),
        (["spo", ":mine"], "mine.valu", "()", "which is no column of the tracker own.py:mine; did you mean mine.value"),
        ([":mine"], "mine.value", "()", "tracker own.py:mine needs spo.value, and the recipe has no tracker spo"),
        (["spo", ":mine"], "mine.value", '("hint_level",)', "is kept by hint_level, and problems have no hint_level"),
        (["spo", ":mine"], "mine.value", '("domain",)', "keeps its rows by domain, which .* is written problem.domain"),
        (["spo", ":mine"], "mine.value", '("value",)', "cannot keep a column 'value'"),
        (["spo", ":mine", ":empty"], "mine.value", "()", "tracker own.py:empty keeps no columns; declare them"),
        (["spo", ":policy"], "spo.value", "()", "a tracker cannot be called policy, which names other columns"),
        (["spo", "spo"], "spo.value", "()", "two functions of the recipe are called spo, one of them a tracker"),
        (["nonesuch"], "spo.value", "()", "there is no tracker 'nonesuch'"),
        (
            [{"name": "spo", "lw": 1}],
            "spo.value",
            "()",
            r"there is no setting trackers.0.lw \(tracker spo\); did you mean low",
        ),
        ([{"name": "spo", "start": "nowhere.jsonl"}], "spo.value", "()", "nowhere.jsonl is neither a file nor an"),
        ([{"name": "spo", "start": "scores/abcd"}], "spo.value", "()", "is a scores artifact; give one of trackers"),
    ],
)
def test_what_no_tracker_keeps_is_refused_before_anything_starts(
    tmp_path: Path, trackers: list[Any], need: str, by: str, said: str
) -> None:
    file = own(tmp_path, need, by)
    named = [file + each if isinstance(each, str) and each.startswith(":") else each for each in trackers]
    with pytest.raises((UsageError, BadInputError)) as refused:
        check_recipe(load_recipe("demo", {"trackers": named, "curate.filters": [f"{file}:low"]}), tmp_path)
    sentence = str(refused.value).replace(f"{tmp_path}/", "")
    assert re.search(said, sentence), sentence


@pytest.mark.parametrize(
    ("need", "said"),
    [
        ("spo.valu", "hint told.py:told needs spo.valu, which is no column of the tracker spo; did you mean spo.value"),
        ("mine.value", "needs mine.value, and the recipe has no tracker mine"),
        ("prompt_tokens", "needs prompt_tokens, which its kind is not handed"),
    ],
)
def test_a_hint_strategy_that_reads_what_nobody_knows_is_refused(tmp_path: Path, need: str, said: str) -> None:
    text = f'@component("hint", needs=("{need}",))\ndef told(problem, fraction):\n    return "x"\n'
    (tmp_path / "told.py").write_text(f"from gradus.components import component\n\n{text}")
    body = {"trackers": ["spo"], "hint.strategy": f"{tmp_path}/told.py:told"}
    with pytest.raises(UsageError, match=said):
        check_recipe(load_recipe("demo", body), tmp_path)


def test_a_tracker_begins_with_rows_of_its_own_alone(tmp_path: Path) -> None:
    store, file = Store(tmp_path / "lake"), own(tmp_path, "mine.value")
    theirs = store.put("trackers", pa.table({"problem_id": ["a"], "spo.value": [0.5]}))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem_id": "b", "value": 0.25, "note": "x"}\n{"problem_id": "a", "value": 1}\n')

    def begun(start: str, **settings: Any) -> Recipe:
        mine = {"name": f"{file}:mine", "start": start, **settings}
        return load_recipe("demo", {"trackers": ["spo", mine], "curate.filters": [f"{file}:low"]})

    plan = begun(str(rows))
    check_recipe(plan, store.root)
    ref = start_ref(store, plan.trackers[1])
    assert store.read(ref).to_pylist() == [
        {"problem_id": "a", "mine.value": 1.0},
        {"problem_id": "b", "mine.value": 0.25},
    ]
    check_recipe(begun(str(ref)), store.root)
    assert as_run(plan).files[str(rows)]
    with pytest.raises(
        BadInputError, match=r"mine.start: trackers/\w+ has no column mine.value, but problem_id, spo.v"
    ):
        check_recipe(begun(str(theirs)), store.root)
    rows.write_text('{"problem_id": "b"}\n')
    with pytest.raises(BadInputError, match=r"mine.start: .*rows.jsonl: it has no value"):
        check_recipe(begun(str(rows)), store.root)
    rows.write_text('{"problem_id": "b", "value": 1}\n' * 2)
    with pytest.raises(BadInputError, match=r"it has two rows of problem_id = b"):
        check_recipe(begun(str(rows)), store.root)


def test_rows_of_other_problems_are_counted_and_refused_if_there_are_no_others(tmp_path: Path) -> None:
    store, rows = Store(tmp_path / "lake"), tmp_path / "rows.jsonl"
    phases = [store.put("problems", pa.table({"problem_id": ids, "question": ids})) for ids in (["a", "b"], ["c"])]

    def said(ids: str, tracker: str = "beta_posterior", key: str = "problem_id") -> list[str]:
        values = {"alpha": 1.0, "beta": 2.0, "reward": 0.5}
        rows.write_text("".join(json.dumps({key: each, **values}) + "\n" for each in ids))
        (chosen,) = load_recipe("demo", {"trackers": [{"name": tracker, "start": str(rows)}]}).trackers
        return foreign_rows(store, chosen, start_ref(store, chosen), phases)

    assert said("abc") == []
    assert said("axbyc") == ["beta_posterior.start: 2 of 5 rows are of problems that are not trained on"]
    assert said("xa") == ["beta_posterior.start: 1 of 2 rows is of a problem that is not trained on"]
    with pytest.raises(BadInputError, match=r"^beta_posterior.start: none of the 2 rows of .*rows.jsonl is of a "):
        said("xy")
    assert said("xy", "dads", "problem.domain") == []


def test_a_tracker_begins_with_rows_of_its_own_settings(tmp_path: Path) -> None:
    store = Store(tmp_path)
    writer = store.writer(Ref("trackers", "ab" * 16))
    writer.write_table(pa.table({"problem_id": ["a"], "beta_posterior.alpha": [1.0], "beta_posterior.beta": [2.0]}))
    writer.commit(config={"tracker": {"name": "beta_posterior", "decay": 0.9, "forget": 1.0, "prior": 1.0}})
    plan = load_recipe("demo", {"trackers": [{"name": "beta_posterior", "decay": 0.5, "start": str(writer.ref)}]})
    with pytest.raises(BadInputError, match=r"was kept with decay = 0.9, and the recipe says decay = 0.5"):
        check_recipe(plan, store.root)
    check_recipe(load_recipe("demo", {"trackers": [{"name": "beta_posterior", "start": str(writer.ref)}]}), store.root)
