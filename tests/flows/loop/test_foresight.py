"""Looking ahead: exact where the lake or a light stage says so, with a trace nowhere; and what training starts from."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.store import Ref, Store
from gradus.flows.library.texts import of_part
from gradus.flows.loop.dry_run import look_ahead
from gradus.flows.loop.foresight import ASKED_FOR, Foresight
from gradus.flows.loop.inputs import problems_of, start_of
from gradus.flows.loop.reruns import Rerun
from gradus.flows.loop.training import train
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.guards import Override
from gradus.flows.recipe.reading import load_recipe, parse_recipe
from gradus.tasks.artifacts.ahead import overlay
from gradus.tasks.config.curation import CurateConfig, SampleConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.history import Attempt
from gradus.tasks.runtime.calls import Call, planned

NOTHING_KNOWN: list[Attempt] = []


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Ten problems to train on, of which three are read, and six to be evaluated on."""
    for name, count in (("mine", 10), ("test", 6)):
        rows = [{"question": f"{name} {i} + 1 =", "answer": str(i + 1)} for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    body = {
        "name": "own",
        "rounds": 1,
        "problems": str(tmp_path / "mine.jsonl"),
        "ingest": {"limit": 3},
        "escalate": [],
        "curate": {"sample": {"n": 4}},
        "score": {"rewards": [{"name": "numeric"}]},
        "evaluate": {"problems": str(tmp_path / "test.jsonl"), "sample": {"n": 2}, "report": {"ks": [1]}},
    }
    return parse_recipe(body, "own.toml")


def test_a_limit_cuts_the_training_set_alone(recipe: Recipe, tmp_path: Path) -> None:
    with overlay(tmp_path / "lake") as store:
        start = start_of(Foresight(store, 0, NOTHING_KNOWN), recipe)
        assert store.manifest(start.problems).rows == 3
        assert store.manifest(start.suites["heldout"]).rows == 6
    assert not (tmp_path / "lake").exists()


def test_a_look_ahead_plans_exactly_and_leaves_no_trace(recipe: Recipe, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    found = look_ahead(home, Rerun(recipe, None))
    assert not home.root.exists()
    assert found["goes_on"] is False
    rollouts = {(c["purpose"], c["round"]): c["rollouts"] for c in found["calls"] if c["stage"] == "rollout"}
    assert rollouts == {("eval", 0): 6 * 2, ("train", 1): 3 * 4, ("eval", 1): 6 * 2}
    assert found["rollouts"] == 36
    assert (found["tokens"], found["seconds"]) == (None, None)  # never measured
    whys = {c["stage"]: c["why"] for c in found["calls"] if c["round"] == 1 and c["purpose"] == "train"}
    assert whys["score"] == "its rollouts is computed anew (rollout-1)"
    assert whys["rollout"] == "nothing like it was computed before"


def test_what_is_asked_for_again_is_computed_and_what_rests_on_it_is_taken_to_stay(tmp_path: Path) -> None:
    store = Store(tmp_path / "lake")
    problems = store.put("problems", pa.table({"problem_id": ["a"], "question": ["1 + 1 ="], "answer": ["2"]}))
    config, inputs = CurateConfig(sample=SampleConfig(n=2)), {"problems": [problems]}
    job = planned(store, Call("curate", config, inputs), run="", seed=0)
    with overlay(store.root) as above:
        session = Foresight(above, 0, NOTHING_KNOWN)
        assert str(session.stage(Call("curate", config, inputs)).ref) == job.output
        assert session.stage(Call("curate", config, inputs)).reused  # once computed, beside the lake, it is there
        forced = Foresight(above, 0, NOTHING_KNOWN, frozenset({("curate", 0, "train")}))
        outcome = forced.stage(Call("curate", config, inputs))
        assert (forced.calls[0]["why"], outcome.reused, outcome.ref) == (ASKED_FOR, False, Ref.parse(job.output))
    assert store.find(Ref.parse(job.output)) is None


def test_own_problems_are_never_measured_on_the_bundled_sums_by_silence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"evaluate\.problems is not set, and the bundled sums say nothing"):
        parse_recipe({"name": "x", "problems": "mine.jsonl"}, "x.toml")
    named = {"name": "x", "problems": "mine.jsonl", "evaluate": {"problems": "bundled:heldout"}}
    assert parse_recipe(named, "x.toml").evaluate.main.problems == "bundled:heldout"
    stored = load_recipe("demo").model_dump(mode="json")
    assert parse_recipe({**stored, "problems": "mine.jsonl"}, "run.json").problems == "mine.jsonl"


def test_verbs_that_sample_take_engine_device_and_settings_of_rollouts() -> None:
    sets = ["rollout.top_p=0.9", "ks=[1,2]", " rollout.vllm.max_num_seqs=4"]
    config, rest = of_part("rollout", RolloutConfig, sets, {"engine": "vllm", "device": "cpu"})
    assert (config.engine, config.device, config.top_p, config.vllm.max_num_seqs) == ("vllm", "cpu", 0.9, 4)
    assert rest == {"ks": [1, 2]}
    with pytest.raises(UsageError, match="topp"):
        of_part("rollout", RolloutConfig, ["rollout.topp=1"], {})


def test_rollouts_know_their_problems_and_anybody_elses_do_not(tmp_path: Path) -> None:
    store = Store(tmp_path / "lake")
    problems = store.put("problems", pa.table({"problem_id": ["a"], "question": ["1 + 1 ="], "answer": ["2"]}))
    rows = pa.table({"rollout_id": ["r"], "problem_id": ["a"], "completion": ["2"]})
    theirs = store.put("rollouts", rows)
    ours = Ref("rollouts", "a" * 32)
    writer = store.writer(ours)
    writer.write_table(rows)
    writer.commit(parents={"problems": [str(problems)], "policy": ["checkpoints/" + "b" * 32]})
    assert problems_of(store, [ours, ours]) == [problems]
    assert problems_of(store, [theirs]) == []


def test_a_prompt_that_fits_no_round_is_refused_before_the_first_or_left_out(recipe: Recipe, tmp_path: Path) -> None:
    with Path(recipe.problems).open("a") as file:
        file.write(json.dumps({"question": "1 + " * 100 + "1 =", "answer": "101"}) + "\n")
    whole = recipe.model_copy(update={"ingest": recipe.ingest.model_copy(update={"limit": 0})})
    with (
        overlay(tmp_path / "lake") as store,
        pytest.raises(
            BadInputError, match=r"^1 of 11 problems have prompts that do not fit .* more than 160 tokens"
        ) as error,
    ):
        start_of(Foresight(store, 0, NOTHING_KNOWN), whole)
    assert "ingest.max_prompt_tokens=160" in error.value.hint
    fitting = whole.model_copy(update={"ingest": whole.ingest.model_copy(update={"max_prompt_tokens": 100})})
    with overlay(tmp_path / "lake") as store:
        session = Foresight(store, 0, NOTHING_KNOWN)
        start = start_of(session, fitting)
        assert (store.manifest(start.problems).rows, store.manifest(start.suites["heldout"]).rows) == (10, 6)
    (told,) = session.remarks
    assert told.startswith(
        "training problems: 1 of 11 rows are left out (prompt of more than 100 tokens: 1; first problem "
    )
    for chosen in ({"name": "length", "high": 100}, {"name": "prompt_tokens", "high": 160}):
        filtered = whole.model_copy(update={"curate": CurateConfig.model_validate({"filters": [chosen]})})
        with overlay(tmp_path / "lake") as store:
            session = Foresight(store, 0, NOTHING_KNOWN)
            start = start_of(session, filtered)
            assert store.manifest(start.problems).rows == 11
            train(session, filtered, start)
            (rollouts,) = [c["rollouts"] for c in session.calls if (c["stage"], c["purpose"]) == ("rollout", "train")]
            assert rollouts == 10 * filtered.curate.sample.n


def test_overrides_of_a_round_count_before_the_first(recipe: Recipe, tmp_path: Path) -> None:
    with Path(recipe.problems).open("a") as file:
        file.write(json.dumps({"question": "1 + " * 30 + "1 =", "answer": "31"}) + "\n")
    whole = recipe.model_copy(update={"ingest": recipe.ingest.model_copy(update={"limit": 0}), "escalate": (1,)})
    home = Home(tmp_path / "home")
    # The policy has 4 layers of 4 heads of 32: 4096 bytes of keys and values a token, for 512 completions of 96 tokens.
    plain = look_ahead(home, Rerun(whole, None))["memory"]
    more = Override(stage="escalate", round=1, changes={"sample.max_tokens": 160})
    memory = look_ahead(home, Rerun(whole.model_copy(update={"overrides": (more,)}), None))["memory"]
    assert memory["rollout"] - plain["rollout"] == 4096 * 512 * (160 - 96)
    long = Override(stage="curate", round=1, changes={"sample.max_tokens": 240})
    with pytest.raises(BadInputError, match=r"^1 of 11 problems .* more than 16 tokens") as error:
        look_ahead(home, Rerun(whole.model_copy(update={"overrides": (long,)}), None))
    assert error.value.hint.endswith("or lower curate.sample.max_tokens")
    (suite,) = whole.evaluate.suites
    eager = suite.model_copy(update={"sample": suite.sample.model_copy(update={"max_tokens": 250})})
    evaluate = whole.evaluate.model_copy(update={"suites": (eager,)})
    with pytest.raises(BadInputError, match=r"^6 of 6 problems .* more than 6 tokens"):
        look_ahead(home, Rerun(whole.model_copy(update={"evaluate": evaluate}), None))
