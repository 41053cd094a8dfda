"""Room on the disk, as a user makes it: states kept now and then, prune, restore, what is asked of pruned things."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import state_files
from tests.e2e.conftest import RECIPE, Program, on_a_terminal

SMALL = ("ingest.limit=24", "curate.draw=8", "escalate=[]", "save_state_every=3")
TRAIN = ("train", str(RECIPE), "--rounds", "3", *(word for each in SMALL for word in ("--set", each)))
WEIGHTS = "model.safetensors"
AT_THREE = 'overrides=[{stage="update", round=3, changes={lr=1e-5}}]'


@pytest.fixture(scope="module")
def trained(new_program: Callable[..., Program]) -> tuple[Program, str]:
    """A program with a run of three rounds, of which the last alone kept its train state."""
    program = new_program(warm=True)
    return program, program.json(*TRAIN)["run"]


def checkpoints(program: Program, run: str) -> list[Ref]:
    """The checkpoints of a run by round, as `gradus show` has them."""
    rows = program.json("show", run)["attempts"]
    return [Ref.parse(row["output"]) for row in rows if row["stage"] == "update" and row["status"] == "finished"]


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_run_killed_far_from_a_kept_state_ends_in_the_same_bits(
    trained: tuple[Program, str], new_program: Callable[..., Program]
) -> None:
    calm, run = trained
    made = checkpoints(calm, run)
    store = Store(calm.home / "lake")
    assert [state_files(store, ref) is not None for ref in made] == [False, False, True]
    program = new_program(warm=True)
    code, _, err = program.run(*TRAIN, GRADUS_FAULT="update:after_step#3")
    assert code == 1
    assert "SIGKILL" in err
    assert [event for event in program.events(run) if event["event"] == "stage_started"][-1]["round"] == 3
    assert program.json(*TRAIN)["run"] == run
    ours = Store(program.home / "lake")
    assert [ours.read_file(ref, WEIGHTS) for ref in made] == [store.read_file(ref, WEIGHTS) for ref in made]
    first, second = (state_files(each, made[2]) for each in (ours, store))
    assert first is not None
    assert second is not None
    assert {n: p.read_bytes() for n, p in first.items()} == {n: p.read_bytes() for n, p in second.items()}


def test_what_is_pruned_is_known_refused_in_a_sentence_and_comes_back(trained: tuple[Program, str]) -> None:
    program, run = trained
    lake = program.home / "lake"
    made = checkpoints(program, run)
    weights = [(lake / str(ref) / WEIGHTS).read_bytes() for ref in made]
    planned = program.json("prune", run, "--keep", "last=1", "--dry-run")
    assert [(c["round"], c["lost"], c["updates"]) for c in planned["checkpoints"]] == [
        (1, "weights", 1),
        (2, "weights", 2),
    ]
    took = [row["seconds"] for row in program.json("show", run)["attempts"] if row["stage"] == "update"]
    assert [c["seconds"] for c in planned["checkpoints"]] == [round(took[0], 1), round(took[0] + took[1], 1)]
    assert (lake / str(made[0]) / WEIGHTS).exists()
    before = bytes_below(lake)
    code, out, err = program.run("prune", run, "--keep", "last=1")
    assert code == 2
    assert str(made[0])[:20] in out
    assert "nothing was removed, since this can only be asked at a terminal" in err
    assert (lake / str(made[0]) / WEIGHTS).exists()
    said = on_a_terminal(program, b"[y/N]", b"n\n", "prune", run, "--keep", "last=1")
    assert b"nothing was removed" in said
    assert (lake / str(made[0]) / WEIGHTS).exists()
    done = program.json("prune", run, "--keep", "last=1", "--yes")
    assert done["bytes"] == planned["bytes"] == 2 * len(weights[0])
    assert abs(before - bytes_below(lake) - done["bytes"]) < 1000  # the notes
    shown = program.json("show", run)
    assert [bool(row["pruned"]) for row in shown["attempts"] if row["stage"] == "update"] == [True, True, False]
    assert shown["bytes"] == program.json("runs")["bytes"] < before
    rows = program.json("sql", "select round, pruned is not null from stages where stage = 'update' order by round")
    assert [tuple(row) for row in rows["rows"]] == [(1, True), (2, True), (3, False)]
    assert program.json("prune", run, "--keep", "last=1")["checkpoints"] == []

    again = program.json(*TRAIN)
    assert sum(stage["ran"] for stage in again["stages"].values()) == 0  # nothing needs what was pruned
    code, _, err = program.run("evaluate", "--policy", str(made[1]), "--problems", "heldout.jsonl", "-n", "1")
    assert code == 1
    assert f"{WEIGHTS} of {made[1]} was pruned on" in err
    assert f"`gradus restore {made[1]}` computes it again" in err
    assert "Traceback" not in err

    code, out, err = program.run("restore", str(made[1]))
    assert code == 0, err
    assert "takes 2 updates, about" in out
    assert "; its weights have their original SHA-256" in out
    assert (lake / str(made[1]) / WEIGHTS).read_bytes() == weights[1]

    assert not (lake / str(made[0]) / WEIGHTS).exists()
    program.json(
        "rerun", run, "rollout", "--round", "2", "--set", "top_k=5"
    )  # a training restores what it goes on from
    assert (lake / str(made[0]) / WEIGHTS).read_bytes() == weights[0]


def test_pruning_spares_what_others_have_and_refuses_what_it_cannot_do(trained: tuple[Program, str]) -> None:
    program, _ = trained
    other = program.json(*TRAIN, "--run", "same-again")["run"]
    planned = program.json("prune", other, "--keep", "last=1", "--dry-run")
    assert planned["checkpoints"] == []
    assert len(planned["spared"]) == 2
    shutil.rmtree(program.home / "runs" / other)
    for command, code, sentence in (
        (("prune", "nobody"), 2, "nobody"),
        (("restore", "rollouts/00aa11bb"), 2, "is no checkpoint; give checkpoints/DIGEST"),
        (("restore", "checkpoints/0000"), 2, "checkpoints/0000"),
    ):
        found, _, err = program.run(*command)
        assert found == code, err
        assert sentence in err
        assert "Traceback" not in err


def test_a_recipes_keep_prunes_as_it_goes_on(new_program: Callable[..., Program]) -> None:
    program = new_program(warm=True)
    kept = ("--set", "keep.last=1", "--set", "keep.best=false", "--set", "save_state_every=1")
    result = program.json(*TRAIN, "--rounds", "2", *kept)
    store = Store(program.home / "lake")
    made = checkpoints(program, result["run"])
    assert [sorted(store.pruned(ref)) for ref in made] == [[WEIGHTS], []]
    assert [state_files(store, ref) is not None for ref in made] == [False, True]
    pruned = [event for event in program.events(result["run"]) if event["event"] == "pruned"]
    assert [event["outputs"] for event in pruned] == [[str(made[0])]]
    assert program.json(*TRAIN, "--set", "keep.last=1")["rounds"] == 3
    shared = checkpoints(program, result["run"])[1]
    assert WEIGHTS in store.pruned(shared)
    program.json(*TRAIN, "--run", "other", "--set", AT_THREE)
    assert (len(checkpoints(program, "other")), store.pruned(shared)) == (1, frozenset())  # two rounds are shared
