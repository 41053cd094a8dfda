"""Measures in the loop: when each runs, on which rows and which model; and what is refused."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.manifest import REPORT
from gradus.data.lake.store import Ref, Store
from gradus.flows.laboratory.flow import _gradient
from gradus.flows.laboratory.stored import StoredRound, StoredRun
from gradus.flows.loop.round.outcomes import Sampled
from gradus.flows.loop.round.steps import Steps
from gradus.flows.loop.training import train
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.by_round import wave_config
from gradus.flows.recipe.reading import load_recipe
from gradus.tasks.runtime.calls import Call, Outcome
from tests.flows.recipe.test_guards import START, Rehearsal, policy_after, recipe
from tests.scorers import scorer_folder

TEACHER = Ref("checkpoints", "7e" * 16)
OWN = """
from gradus.components import component

@component("measure", by=BY, columns=COLUMNS, needs=NEEDS)
def mine(rows, model, *, layer: int = -1):
    return {}

@component("tracker", by=(), columns=("a",), needs=("angles.concentration", "likelihood.logp"))
def kept(before, round):
    return {}

@component("shape", needs=("likelihood.logp",))
def probable(rows):
    return {}

@component("filter", needs=("FILTERED",))
def low(rows):
    return None
"""


@dataclass
class Measured(Rehearsal):
    """A rehearsal that notes the inputs of each measure, and the tables that its readers are given."""

    calls: dict[tuple[str, int], dict[str, list[str]]] = field(default_factory=dict)
    read: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def stage(self, call: Call) -> Outcome:
        outcome = super().stage(call)
        if call.purpose == "pairs1":
            outcome.report["summary"]["uses"] = {"policy": ["judge"]}
        if call.name == "measure":
            self.calls[call.purpose, call.round] = {
                role: [str(ref) for ref in refs] for role, refs in call.inputs.items()
            }
            return replace(outcome, ref=table_of(call.purpose, call.round))
        if "trackers" in call.inputs and not call.purpose.startswith("eval"):
            self.read[f"{call.name} {call.purpose}", call.round] = [str(ref) for ref in call.inputs["trackers"]]
        return outcome


def table_of(purpose: str, index: int) -> Ref:
    return Ref("measures", f"{purpose}-{index}".encode().hex()[:64].ljust(8, "0"))


def measured(plan: Recipe) -> Measured:
    session = Measured([0.5] * 9)
    train(session, plan, replace(START, teacher=TEACHER))  # pyright: ignore[reportArgumentType] - has no store
    return session


def plan_of(*measures: Any, reads: Sequence[str], rounds: int = 2, folder: Path, **more: Any) -> Recipe:
    file = own(folder, filtered=reads[0])
    return recipe([], rounds=rounds, measures=list(measures), curate={"filters": [f"{file}:low"]}, **more)


def own(
    folder: Path,
    by: str = '("problem_id",)',
    columns: str = '("a",)',
    needs: str = '("question",)',
    filtered: str = "mine.a",
) -> str:
    text = OWN.replace("BY", by).replace("COLUMNS", columns).replace("NEEDS", needs).replace("FILTERED", filtered)
    (folder / "own.py").write_text(text)
    return str(folder / "own.py")


def test_a_frozen_model_measures_the_problems_once_and_the_policy_each_round(tmp_path: Path) -> None:
    reads = ["angles.concentration"]
    once = measured(plan_of({"name": "angles", "role": "start"}, reads=reads, folder=tmp_path, rounds=3))
    assert [*once.calls] == [("angles", 1)]
    assert once.calls["angles", 1]["policy"] == [str(START.policy)]
    assert [once.read["curate train", index] for index in (1, 2, 3)] == [[str(table_of("angles", 1))]] * 3
    each = measured(plan_of("angles", reads=reads, folder=tmp_path, rounds=3))
    assert [call["policy"] for call in each.calls.values()] == [[policy_after(index)] for index in range(3)]
    assert each.read["curate train", 3] == [str(table_of("angles", 3))]
    taught = measured(plan_of({"name": "angles", "role": "teacher"}, reads=reads, folder=tmp_path, rounds=1))
    assert taught.calls["angles", 1]["policy"] == [str(TEACHER)]


def test_a_laboratory_asks_the_models_of_roles_as_the_rounds_before_left_them(tmp_path: Path) -> None:
    began, later, sampler = Ref("checkpoints", "6e" * 16), Ref("checkpoints", "8e" * 16), Ref("checkpoints", "9e" * 16)
    asked = {"name": "likelihood", "role": "judge"}
    changes = {"measures": [asked], "roles": {"judge": {"policy": "bundled"}}}
    plan = recipe([], update={"shapes": [f"{own(tmp_path)}:probable"]}, **changes)
    rows = Sampled("policy", "learn", Ref("rollouts", "a" * 8), [Ref("scores", "a" * 8)], 0)
    for roles, model in (({}, began), ({"judge": later}, later)):
        session = Measured([0.5] * 9)
        steps = Steps(session, plan, replace(START, roles={"judge": began}))  # pyright: ignore[reportArgumentType]
        stored = StoredRound(2, [sampler], START.problems, [Ref("plan", "a" * 8)], [rows], {}, roles)
        _gradient(steps, stored, 0, "mine")
        assert session.calls["likelihood", 2]["policy"] == [str(model)]
        assert session.calls["likelihood", 2]["sampler"] == [str(sampler)]


def test_a_stored_round_has_the_last_model_of_a_role_whose_update_took_a_step(tmp_path: Path) -> None:
    store, made = Store(tmp_path), [Ref("checkpoints", digit * 32) for digit in "1234"]
    for ref, files in zip(
        made, (["model.safetensors", REPORT], [REPORT], ["model.safetensors", REPORT], []), strict=True
    ):
        out = store.writer(ref)
        for name in files:
            out.write_file(name, b"{}")
        out.commit(identity={})
    run = StoredRun(store, tmp_path)
    calls = [("update", 1, "judge"), ("update", 2, "judge"), ("update", 3, "judge"), ("update", 1, "train")]
    vars(run).update(
        recipe=recipe([], roles={"judge": {"policy": "bundled"}}), calls=dict(zip(calls, made, strict=True))
    )
    assert [run._roles(index) for index in (1, 2, 3, 4)] == [{}, *[{"judge": made[0]}] * 2, {"judge": made[2]}]


def test_each_phase_has_its_own_problems_measured(tmp_path: Path) -> None:
    other = Ref("problems", "c" * 8)
    phases = [{"rounds": 2}, {"rounds": 1, "problems": "bundled:heldout"}]
    measure = {"name": "angles", "role": "start"}
    plan = plan_of(measure, reads=["angles.concentration"], folder=tmp_path, rounds=3, phase=phases)
    session = Measured([0.5] * 9)
    train(session, plan, replace(START, phases=(START.problems, other)))  # pyright: ignore[reportArgumentType] - has no store
    assert {key: call["problems"] for key, call in session.calls.items()} == {
        ("angles", 1): [str(START.problems)],
        ("angles", 3): [str(other)],
    }


def test_a_measure_that_nobody_reads_does_not_run(tmp_path: Path) -> None:
    plain = recipe([], rounds=1, measures=["angles", "likelihood"])
    assert not measured(plain).calls
    assert "measures" not in load_recipe("demo").model_dump(mode="json")


def test_rollouts_are_measured_when_they_are_read_and_each_once(tmp_path: Path) -> None:
    file = own(tmp_path)
    functions = {"measures": ["token_entropy", "likelihood", "angles"], "trackers": [f"{file}:kept"]}
    session = measured(recipe([], rounds=1, waves=["branch_entropy"], **functions))
    assert [*session.calls] == [("token_entropy", 1), ("angles", 1), ("likelihood", 1)]
    first = session.calls["token_entropy", 1]
    assert (first["policy"], len(first["rollouts"]), len(first["plan"])) == ([str(START.policy)], 1, 1)
    assert "sampler" not in first
    # What the tracker reads is measured of the branches too, in one call.
    assert len(session.calls["likelihood", 1]["rollouts"]) == 2
    assert session.read["wave branch_entropy1", 1] == [str(table_of("token_entropy", 1))]
    assert session.read["tracker kept", 1] == [str(table_of(name, 1)) for name in ("angles", "likelihood")]
    twice = measured(recipe([], rounds=1, waves=[{"name": "branch_entropy", "times": 2}], **functions))
    assert [len(twice.calls[each, 1]["rollouts"]) for each in ("token_entropy", "token_entropy-2")] == [1, 1]
    tables = [str(table_of(each, 1)) for each in ("token_entropy", "token_entropy-2")]
    assert twice.read["wave branch_entropy2", 1] == tables


def test_rows_of_other_uses_are_not_measured_and_another_model_knows_the_sampler(tmp_path: Path) -> None:
    measure = {"name": "likelihood", "role": "start"}
    shapes = [f"{own(tmp_path, filtered='likelihood.logp')}:probable"]
    session = measured(recipe([], rounds=2, waves=["pairs"], measures=[measure], update={"shapes": shapes}))
    calls = [session.calls["likelihood", index] for index in (1, 2)]
    assert [len(call["rollouts"]) for call in calls] == [1, 1]  # not those of the judge
    assert [call["policy"] for call in calls] == [[str(START.policy)]] * 2
    assert [call.get("sampler") for call in calls] == [None, [policy_after(1)]]


def test_a_measure_has_the_hints_of_the_round_and_the_rows_of_the_uses_that_it_names(tmp_path: Path) -> None:
    update = {"shapes": [f"{own(tmp_path, filtered='likelihood.logp')}:of_mine"]}
    file = own(tmp_path, by='("rollout_id",)', needs='("hint.texts", "judge: completion")')
    reader = '\n@component("shape", needs=("mine.a",))\ndef of_mine(rows):\n    return {}\n'
    (tmp_path / "own.py").write_text((tmp_path / "own.py").read_text() + reader)
    more: dict[str, Any] = {"measures": [f"{file}:mine"], "update": update, "waves": ["pairs"]}
    plan = recipe([], rounds=1, **more)
    assert plan.reads_hints
    assert not recipe([], rounds=1, escalate=()).reads_hints
    session = measured(plan)
    call = session.calls["mine", 1]
    assert (len(call["rollouts"]), len(call["hints"])) == (2, 1)  # those of the judge, too
    assert bytes.fromhex(call["hints"][0].partition("/")[2]).decode() == "hint-0-train"  # as the rehearsal names it


TEXTS = {"one.jsonl": Ref("rollouts", "1a" * 8), "two.jsonl": Ref("rollouts", "2b" * 8)}


def with_texts(folder: Path, *waves: Any, rounds: int = 2, **measure: Any) -> Measured:
    own(folder, by='("trace_id",)', needs='("text", "problem.question")')
    mine = {"name": f"{folder / 'own.py'}:mine", **measure}
    plan = recipe([], rounds=rounds, waves=list(waves), measures=[mine], update={"origin_losses": [SFT]})
    session = Measured([0.5] * 9)
    train(session, plan, replace(START, traces=TEXTS))  # pyright: ignore[reportArgumentType] - has no store
    return session


SFT = {"origin": "expert", "loss": "sft"}


def test_the_texts_of_a_wave_are_measured_before_it_by_each_policy_or_once_by_a_frozen_model(tmp_path: Path) -> None:
    one = {"name": "given", "traces": "one.jsonl", "best": "mine.a"}
    each = with_texts(tmp_path, one)
    assert [*each.calls] == [("mine", 1), ("mine", 2)]
    assert [call["policy"] for call in each.calls.values()] == [[policy_after(0)], [policy_after(1)]]
    assert each.calls["mine", 2]["traces"] == [str(TEXTS["one.jsonl"])]
    assert each.read["wave given1", 2] == [str(table_of("mine", 2))]
    assert [*with_texts(tmp_path, one, role="start").calls] == [("mine", 1)]
    two = {"name": "given_unsolved", "traces": "two.jsonl", "best": "mine.a"}
    both = with_texts(tmp_path, one, two, rounds=1)
    assert {key: call["traces"] for key, call in both.calls.items()} == {
        ("mine", 1): [str(TEXTS["one.jsonl"])],
        ("mine-2", 1): [str(TEXTS["two.jsonl"])],
    }
    assert both.read["wave given_unsolved1", 1] == [str(table_of("mine-2", 1))]
    assert not with_texts(tmp_path, {"name": "given", "traces": "one.jsonl"}).calls  # nobody reads it


FILED = {"name": "given", "traces": "texts.jsonl"}


@pytest.mark.parametrize(
    ("waves", "shape", "said"),
    [
        ([], "", r"measure own.py:mine is of the texts of a file, and no wave has one; set traces = .FILE. of a wave"),
        (
            [FILED, {"name": "given_unsolved", "best": "mine.a"}],
            "",
            r"given_unsolved needs mine.a, which is of the texts",
        ),
        ([FILED], "mine.a", "shape best needs mine.a, which is of the texts of a file; let a wave with traces"),
        ([{**FILED, "best": "mine.b"}], "", "needs mine.b, which is no column of the measure own.py:mine"),
        ([{**FILED, "best": "reward"}], "", "given.best: reward is no column of a measure of texts; it can be mine.a"),
        ([{**FILED, "best": "gold.logp"}], "", "given.best: gold.logp is no column of a measure of texts"),
        (
            [FILED, {"name": "refill", "best": "gold.logp"}],
            "",
            "refill.best: the wave has no file of texts; set traces",
        ),
    ],
)
def test_texts_that_nobody_has_are_refused_before_anything_starts(
    tmp_path: Path, waves: list[Any], shape: str, said: str
) -> None:
    own(tmp_path, by='("trace_id",)', needs='("text",)')
    (tmp_path / "texts.jsonl").write_text("{}\n")
    filed = [{**wave, "traces": str(tmp_path / wave["traces"])} if "traces" in wave else wave for wave in waves]
    changes: dict[str, Any] = {
        "measures": [f"{tmp_path / 'own.py'}:mine", "gold"],
        "waves": filed,
        "update.origin_losses": [SFT],
        "update.shapes": [{"name": "best", "column": shape}] if shape else [],
    }
    with pytest.raises(UsageError) as refused:
        check_recipe(load_recipe("demo", changes), tmp_path)
    assert re.search(said, str(refused.value)), str(refused.value)


@pytest.mark.parametrize(
    ("settings", "own_", "said"),
    [
        (
            {"role": "judge"},
            {},
            r"measure own.py:mine: role = 'judge' is no role of the recipe; it can be policy, start",
        ),
        ({"role": "teacher"}, {}, r'role = \'teacher\': the recipe has no teacher; set teacher = "POLICY"'),
        ({"role": "served"}, {}, r"role = 'served': its server answers with text"),
        ({}, {"by": '("domain",)'}, r'measure own.py:mine has domain as its key; write by=\("problem_id",\)'),
        ({}, {"by": "()"}, r"measure own.py:mine has no key as its key"),
        ({}, {"columns": "()"}, r'measure own.py:mine keeps no columns; declare them: @component\("measure"'),
        ({}, {"needs": '("angles.concentration",)'}, r"needs angles.concentration, a column of a tracker or measure"),
        ({}, {"needs": '("reward",)'}, r"measure own.py:mine needs reward, which its kind is not handed"),
        ({}, {"needs": '("hint.texts",)'}, r"measure own.py:mine needs hint.texts, which its kind is not handed"),
        ({}, {"by": '("rollout_id",)'}, r"mine.a, which is kept by rollout_id, and problems have no rollout_id"),
        ({}, {"filtered": "mine.b"}, r"needs mine.b, which is no column of the measure own.py:mine; .* mine.a"),
        ({}, {"filtered": "gold.logp"}, r'the recipe has no measure gold; add it: \[\[measures\]\] with name = "gold"'),
        ({"layers": 2}, {}, r"there is no setting measures.0.layers \(measure .*own.py:mine\); did you mean layer"),
    ],
)
def test_a_measure_that_cannot_be_used_is_refused_before_anything_starts(
    tmp_path: Path, settings: dict[str, Any], own_: dict[str, str], said: str
) -> None:
    file = own(tmp_path, **own_)
    server = {"engine": "openai", "server": {"url": "http://127.0.0.1:9", "tokens": False}}
    changes: dict[str, Any] = {
        "measures": [{"name": f"{file}:mine", **settings}],
        "curate.filters": [f"{file}:low"],
        "roles.served.rollout": server,
    }
    with pytest.raises((UsageError, BadInputError)) as refused:
        check_recipe(load_recipe("demo", changes), tmp_path)
    sentence = str(refused.value).replace(f"{tmp_path}/", "")
    assert re.search(said, sentence), sentence


@pytest.fixture(scope="module")
def scorers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models: one that scores texts, and others that do not, or not as they should."""
    folder = tmp_path_factory.mktemp("scorers")
    scorer_folder(folder / "TWO", num_labels=2)
    for name in ("ONE", "PICKLE", "CODE"):
        scorer_folder(folder / name, positions=512 if name == "CODE" else 64)
    (folder / "PICKLE" / "model.safetensors").rename(folder / "PICKLE" / "pytorch_model.bin")
    config = folder / "CODE" / "config.json"
    config.write_text(config.read_text().replace("LlamaForSequenceClassification", "LlamaForProcessRewardModel"))
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"roles.rm.sample.max_tokens": 4096}, ""),  # it samples nothing
        (
            {"measures": ["reward_model"]},
            r"measure reward_model: bundled has no scalar head: its config.json names no arch",
        ),
        ({"roles.rm.policy": "TWO"}, r"measure reward_model: TWO returns 2 numbers for a text, by the labels in its"),
        (
            {"roles.rm.policy": "PICKLE"},
            r"roles.rm.policy: PICKLE has no weights as safetensors, and other formats can",
        ),
        ({"roles.rm.policy": "CODE"}, r"measure reward_model: CODE has no scalar head: its config.json names no arch"),
        (
            {"policy": "ONE"},
            r"policy: ONE scores texts, by the architecture in its config.json, and can neither sample",
        ),
        ({"teacher": "ONE"}, r"teacher: ONE scores texts, by the architecture in its config.json"),
        (
            {"waves": [{"name": "pairs", "role": "rm"}], "score.judge.rewards": ["numeric"]},
            r"roles.rm.policy: ONE scores texts, .* can neither sample nor be trained; name a language model",
        ),
        (
            {"roles.rm.update.lr": 1e-5, "score.judge.rewards": ["numeric"]},
            r"roles.rm.policy: ONE scores texts, .* can neither sample nor be trained",
        ),
        ({"evaluate.suites": [{"measures": ["reward_model"]}]}, r"measure reward_model: bundled has no scalar head"),
    ],
)
def test_a_model_with_another_head_is_refused_before_anything_starts(
    scorers: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    whole = {"measures": [{"name": "reward_model", "role": "rm"}], "roles.rm.policy": "ONE", **changes}
    named = {
        key: str(scorers / str(value)) if key.endswith("policy") or key == "teacher" else value
        for key, value in whole.items()
    }
    if not said:
        check_recipe(load_recipe("demo", named), tmp_path)
        return
    with pytest.raises((UsageError, BadInputError)) as refused:
        check_recipe(load_recipe("demo", named), tmp_path)
    sentence = str(refused.value).replace(f"{scorers}/", "")
    assert re.search(said, sentence), sentence


def test_a_reward_model_beside_a_wave_plans_the_wave_no_other_rows(tmp_path: Path) -> None:
    scorer_folder(tmp_path)
    plain = load_recipe("demo", {"roles": {"judge": {"policy": "bundled"}}})
    rated = {"roles": {"judge": {"policy": "bundled"}, "rm": {"policy": str(tmp_path)}}}
    measures = {"measures": [{"name": "reward_model", "role": "rm"}], "update.shapes": ["measured"]}
    (wave,) = plain.all_waves
    assert [*wave_config(plain, wave, 1).roles] == ["judge"]
    assert wave_config(load_recipe("demo", {**rated, **measures}), wave, 1) == wave_config(plain, wave, 1)


def test_a_measure_follows_overrides_and_schedules_by_its_name(tmp_path: Path) -> None:
    from gradus.flows.recipe.course.by_round import measure_config

    plan = load_recipe(
        "demo",
        {"measures": [{"name": "angles", "layer": {"schedule": "linear", "start": 0, "end": 4, "rounds": 5}}]},
    )
    assert [measure_config(plan, plan.measures[0], index).measure.settings["layer"] for index in (1, 3, 9)] == [0, 2, 4]
    changed = load_recipe(
        "demo",
        {"measures": ["angles"], "overrides": [{"stage": "angles", "from_round": 2, "changes": {"measure.layer": 1}}]},
    )
    assert measure_config(changed, changed.measures[0], 2).measure.settings["layer"] == 1
