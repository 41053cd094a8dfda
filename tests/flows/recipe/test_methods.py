"""Methods laid over a recipe."""

from pathlib import Path

import pytest
import torch

from gradus.data.errors import UsageError
from gradus.flows.asked import planned
from gradus.flows.loop.inputs import run_name
from gradus.flows.loop.reruns import read_recipe
from gradus.flows.loop.variants import methods_of
from gradus.flows.recipe.overlays import find_overlays, overlaid, overlay_files, task_overlay
from gradus.flows.recipe.reading import load_recipe
from gradus.models.objectives.rows import Rows
from gradus.tasks.identity.loading import load
from gradus.tasks.runs.run_settings import write_settings
from tests.e2e.methods.behaviour import BEHAVIOUR
from tests.scorers import scorer_folder

EXTRA = {name: {"teacher": "bundled"} for name in ("gkd", "kdrl", "mopd", "on_policy_distillation", "star_ckd")}
"""What a method needs of its run."""
SCORED = ("autorule", "rlmt")
"""Methods that need a reward model."""


@pytest.mark.parametrize("name", overlay_files())
def test_every_method_can_train_the_demo(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path))
    needs = {"roles.rm.policy": str(scorer_folder(tmp_path / "rm"))} if name in SCORED else EXTRA.get(name)
    plan = planned("demo", method=name, set=needs, rounds=2, engine=None, overlap=None, run=None)
    (overlay,) = find_overlays([name])
    assert overlay.facts["what"]
    assert plan.recipe.name == f"demo-{name}"
    apart = {**plan.recipe.model_dump(), "name": "demo", "rounds": 18, **({"teacher": ""} if name in EXTRA else {})}
    assert (
        apart != load_recipe("demo").model_dump() or name == "clip_higher"
    )  # of which the demo's loss has the default


def test_kdrl_adds_a_small_estimate_of_the_reverse_divergence_from_the_teacher_to_grpo() -> None:
    own, teacher = load_recipe("demo", ["teacher=bundled"], ["kdrl"]).update.objective
    assert (own.loss.name, own.advantage and own.advantage.name, own.coefficient) == ("clip", "grpo", 1.0)
    theirs, ours = torch.tensor([0.6, 0.25]), torch.tensor([0.3, 0.25])
    rows = Rows({}, {"teacher.logp": theirs.log(), "now.logp": ours.log()}, torch.tensor([2]))
    loss, _ = load(teacher.loss)(rows)
    # Of the first token ln(2)^2 / 2 = 0.240227, of the second, where both agree, 0.
    assert (teacher.coefficient * loss.mean()).item() == pytest.approx(0.002 * 0.240227 / 2, rel=1e-4)


def test_luffy_is_a_clipped_term_of_own_rows_and_a_shaped_one_of_given_rows() -> None:
    short = load_recipe("demo", methods=["luffy"]).update
    own = '{loss="clip", without={origin=["expert"]}, over="step"}'
    given = '{loss={name="luffy", gamma=0.1}, rows={origin="expert"}, over="step", name="expert_"}'
    given_rows = "given={template='{solution}\\n#### {answer}'}"
    spelt = load_recipe("demo", [given_rows, f"update.terms=[{own}, {given}]"]).update
    assert spelt.terms
    assert not short.terms
    assert spelt.objective == short.objective
    # Before the first step the ratio of own tokens is 1: -A; of given ones -A p / (p + 0.1).
    now = torch.tensor([0.9, 0.4, 0.1]).log()
    columns = {"now.logp": now, "old.logp": now, "advantage": torch.tensor([0.25, 0.5, 0.5])}
    ours, theirs = (load(term.loss)(Rows({}, columns, torch.tensor([3])))[0].tolist() for term in spelt.objective)
    assert ours == pytest.approx([-0.25, -0.5, -0.5])
    assert theirs == pytest.approx([-0.25 * 0.9, -0.5 * 0.8, -0.5 * 0.5])


def test_a_method_is_merged_before_assignments() -> None:
    plain, changed = load_recipe("demo"), load_recipe("demo", ["update.aggregation.length_tokens=7"], ["dr_grpo"])
    assert (changed.update.advantage.name, changed.update.aggregation.settings) == ("dr_grpo", {"length_tokens": 7})
    assert changed.update.lr == plain.update.lr


def test_a_number_follows_the_recipe() -> None:
    recipe = load_recipe("demo", ["curate.sample.max_tokens=50", "profile.max_tokens=50"], ["dr_grpo"])
    assert recipe.update.aggregation.settings == {"length_tokens": 50}
    assert load_recipe("demo", methods=["lora"]).update.lr == pytest.approx(1.5e-3)
    assert load_recipe("demo", ["update.lr=1e-6"], ["lora"]).update.lr == 1e-6


def test_methods_are_laid_over_one_another() -> None:
    both = load_recipe("demo", methods=["dr_grpo", "top_entropy"])
    assert both == load_recipe("demo", methods=["dr_grpo+top_entropy"])
    assert (both.name, both.update.advantage.name) == ("demo-dr_grpo-top_entropy", "dr_grpo")
    assert [each.name for each in both.update.weights] == ["top_entropy"]


def test_a_conflict_names_both_methods_and_the_key() -> None:
    with pytest.raises(UsageError, match=r"the methods grpo and dr_grpo set update\.advantage differently"):
        load_recipe("demo", methods=["grpo", "dr_grpo"])
    assert load_recipe("demo", methods=["clip_higher", "dapo"])  # which agree


def test_a_task_is_part_of_the_recipe_that_a_method_changes() -> None:
    both = load_recipe("tasks", methods=[task_overlay("records"), "bleuberi"])
    assert ([each.name for each in both.score.rewards], both.problems) == (["bleu"], "bundled:records")
    assert both.name == "tasks-records-bleuberi"


def test_a_component_is_replaced_whole_and_a_table_merged() -> None:
    body = {"name": "mine", "update": {"lr": 1.0, "loss": {"name": "reinforce"}}, "curate": {"sample": {"n": 4}}}
    found = overlaid(body, find_overlays(["brorl", "clip_higher"]))
    assert found["curate"] == {"sample": {"n": 512}}
    assert found["update"] == {"lr": 1.0, "loss": {"name": "clip", "clip_low": 0.2, "clip_high": 0.28}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[update]\nlos = 1\n", r"demo.toml with --method .*mine.toml: there is no setting update.los"),
        ('name = "x"\n', "sets name, which belongs to a run, not to a method"),
        ('trust = "sure"\n', "there is no trust 'sure'"),
        ("paper = 3\n", "paper must be text"),
        ("paper =\n", "is not valid TOML"),
        ('[update]\nlr = "=update.epochs"\n', "a method reads update.epochs, and the recipe does not set it"),
    ],
)
def test_a_users_method_that_cannot_be_one(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        load_recipe("demo", methods=[str(tmp_path / "mine.toml")])


def test_unknown_names() -> None:
    with pytest.raises(UsageError, match="there is no method drgrpo") as refused:
        load_recipe("demo", methods=["drgrpo"])
    assert "dr_grpo" in refused.value.hint
    with pytest.raises(UsageError, match="luffy is a method, not a recipe") as refused:
        load_recipe("luffy")
    assert "demo --method luffy" in refused.value.hint


def test_rows_of_a_comparison(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("[update]\nlr = 1e-3\n")
    rows = methods_of(tmp_path, ["demo"], [], 2, ["none", "grpo", "dr_grpo+tis", str(mine)])
    assert [row.name for row in rows] == ["demo", "demo+grpo", "demo+dr_grpo+tis", "demo+mine"]
    assert [row.recipe.name for row in rows] == ["demo", "demo-grpo", "demo-dr_grpo-tis", "demo-mine"]
    (tmp_path / "again.toml").write_text('[update]\nloss = "clip"\n')
    with pytest.raises(UsageError, match=r"demo\+clip_higher and demo\+again are the same method"):
        methods_of(tmp_path, ["demo"], [], 2, ["clip_higher", str(tmp_path / "again.toml")])


def test_methods_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs" / "methods").mkdir(parents=True)
    for folder in ("theirs", "theirs/methods"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "theirs" / "methods" / "quick.toml").write_text("[update]\nlr = 0.5\n")
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gradus.methods]\ntheirs = theirs.methods\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_recipe("demo", methods=["quick"]).update.lr == 0.5


def test_a_run_of_a_method_is_resumed_without_its_file(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    file = tmp_path / "mine.toml"
    file.write_text("[update]\nlr = 1e-3\n")
    recipe = load_recipe("demo", methods=[str(file)])
    name = run_name(recipe)
    (runs / name).mkdir(parents=True)
    write_settings(runs / name, {"verb": "train", "seed": 1, "recipe": recipe.model_dump(mode="json")})
    file.unlink()
    assert read_recipe(runs, name, []) == (recipe, name)
    assert read_recipe(runs, name, [], ["tis"])[1] is None


def test_every_method_has_a_check_of_its_defining_behaviour() -> None:
    assert {*BEHAVIOUR} == {*overlay_files()}
