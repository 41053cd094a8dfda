"""Stage update on a real store with a tiny real policy: joins, replaced groups, warm workers, kills."""

import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from gradus.data.errors import BadInputError, StageError
from gradus.data.lake.store import Ref
from gradus.models.policy import load_policy
from gradus.tasks.artifacts.weights import LoadedPolicies, PolicyKey
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.shape import run as shape
from gradus.tasks.stages.update.train_state import KeptTraining
from tests.tasks.stages.attempts import attempted
from tests.tasks.stages.update.conftest import state_folder
from tests.tasks.stages.update.test_formats import chained

House = Any


def test_an_update_reports_what_it_did_and_leaves_a_loadable_policy(house: House) -> None:
    rows = house.rows()
    folder, report = house.update(rows, house.rewards)
    assert report["summary"] == {
        "updates": 1,
        "tokens_trained": sum(len(row["completion_tokens"]) for row in rows),
        "groups": 3,
        "zero_std_groups": 1,
        "replaced_groups": 0,
        "unjudged_rows": 0,
        "first_zero_std": "c@r1h0:0",
        "most_mismatched": report["summary"]["most_mismatched"],
        "oldest": "a@r1h0:0",
        "oldest_updates": 0,
    }
    assert report["summary"]["most_mismatched"] in {row["rollout_id"] for row in rows}
    metrics = report["metrics"]
    assert metrics["trained/reward_mean"] == pytest.approx(7 / 12)
    assert metrics["trained/reward_std"] == pytest.approx(math.sqrt(7 / 12 * 5 / 12))
    assert metrics["trained/frac_zero_std_groups"] == metrics["trained/frac_all_right"] == pytest.approx(1 / 3)
    assert metrics["trained/truncated_frac"] == pytest.approx(1 / 12)
    assert metrics["mismatch/logp_diff_max"] < 1e-4
    assert metrics["policy/lr"] == pytest.approx(5e-5 / 15)
    assert {"policy/entropy", "policy/grad_norm", "perf/tokens_per_s", "mismatch/kl"} <= set(metrics)
    assert len(report["steps"]) == 1
    best, worst = report["samples"][0], report["samples"][6]
    assert (best["rollout_id"], best["reward"], best["completion"]) == ("a@r1h0:0", 1.0, "<b>text</b>")
    assert best["advantage"] == pytest.approx(0.75 / 0.5001)
    assert worst["advantage"] == pytest.approx(-0.5 / (math.sqrt(1 / 3) + 1e-4))
    assert json.loads((state_folder(folder) / "state.json").read_text())["step"] == 1
    before, after = house.weights(house.store.path(house.policy)), house.weights(folder)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    load_policy(folder, "float32")


def test_rows_that_could_not_be_judged_are_left_out_and_counted(house: House) -> None:
    rows = house.rows()
    rewards: list[float | None] = [1, None, 0, 0, *house.rewards[4:]]
    with_gap, report = house.update(rows, rewards)
    assert report["summary"]["unjudged_rows"] == 1
    kept = [i for i in range(12) if i != 1]
    without, _ = house.update([rows[i] for i in kept], [rewards[i] for i in kept])
    assert house.same_files(with_gap, without)


def test_a_failed_bare_group_gives_way_to_its_hinted_retry(house: House) -> None:
    bare, level1, level2 = house.rows(), house.rows(problems="ab", level=1), house.rows(problems="b", level=2)
    # a: failed, then solved under hint 1. b: failed at 0 and 1, then solved under hint 2. c: solved bare.
    rewards = [[0.0] * 8 + [1, 0, 0, 1], [0, 1, 0, 0] + [0.0] * 4, [0.0, 1, 1, 1]]
    batches = list(zip((bare, level1, level2), rewards, strict=True))
    inputs = {
        "rollouts": [house.put(rows) for rows, _ in batches],
        "scores": [house.score(rows, list(r)) for rows, r in batches],
        "policy": [house.policy],
    }
    folder, report = house.run(house.job(inputs))
    assert report["summary"]["replaced_groups"] == 3
    assert report["summary"]["groups"] == 3
    assert report["metrics"]["trained/hint_level_mean"] == 1.0
    kept = [*bare[8:], *level1[:4], *level2]
    alone, _ = house.update(kept, [1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 1, 1])
    first, second = house.weights(folder), house.weights(alone)
    assert all(torch.allclose(first[name], second[name], atol=1e-7) for name in first)
    _, both = house.run(house.job(inputs, drop_replaced_groups=False))
    assert (both["summary"]["replaced_groups"], both["summary"]["groups"]) == (0, 6)


def test_only_certain_failures_that_a_hint_followed_are_replaced(house: House) -> None:
    bare, hinted = house.rows(problems="abc"), house.rows(problems="ab", level=1)
    # a: solved bare and hinted (both stay). b: one judgement is missing, so that nothing is certain. c: no retry.
    rewards: list[float | None] = [1, 0, 0, 0, 0, None, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
    _, report = house.update([*bare, *hinted], rewards)
    assert (report["summary"]["replaced_groups"], report["summary"]["groups"]) == (0, 5)
    # Failed throughout: the last try stays.
    _, report = house.update([*bare, *hinted], [0.0] * 4 + [1, 0, 0, 0] * 2 + [0.0] * 4 + [1, 0, 0, 0])
    assert (report["summary"]["replaced_groups"], report["summary"]["groups"]) == (1, 4)


def test_rows_without_a_group_are_grouped_by_their_problem(house: House) -> None:
    named, _ = house.update(house.rows(), house.rewards)
    unnamed, report = house.update([{**row, "group_id": None} for row in house.rows()], house.rewards)
    assert report["summary"]["groups"] == 3
    assert house.same_files(named, unnamed)


def test_the_kl_to_a_reference_is_reported_and_pulls(house: House) -> None:
    rows = house.rows()
    inputs = {
        "rollouts": [house.put(rows)], "scores": [house.score(rows, house.rewards)],
        "policy": [house.policy], "reference": [house.other],
    }  # fmt: skip
    pulled, report = house.run(house.job(inputs, kl_coef=0.5))
    free, _ = house.update(rows, house.rewards)
    assert report["metrics"]["policy/kl_ref"] > 0
    assert not house.same_files(pulled, free)


def test_a_warm_train_state_gives_the_bits_of_a_loaded_one(new_house: Callable[[str], House]) -> None:
    kept = Warm()
    house = new_house("warm")
    more = {"warmup_steps": 5, "weight_decay": 0.1}
    warm, cold = chained(house, lambda: kept, **more), chained(new_house("cold"), Warm, **more)
    assert all(house.same_files(first, second) for first, second in zip(warm, cold, strict=True))
    assert json.loads((state_folder(warm[-1]) / "state.json").read_text())["step"] == 12
    latest, made = kept.of(KeptTraining).latest, warm[-1].name
    assert latest is not None
    assert (kept.of(KeptTraining).digest, latest.config.device) == (made, "auto")
    assert {PolicyKey(made, "auto", "auto"), PolicyKey(made, "float32", "auto")} == set(kept.of(LoadedPolicies).by_key)


def test_an_update_refused_half_way_leaves_no_changed_policy_in_memory(house: House) -> None:
    warm = Warm()
    old = PolicyKey(house.policy.digest, "auto", "auto")
    warm.of(LoadedPolicies).by_key[old] = load_policy(house.store.path(house.policy), "float32")
    inputs = house.inputs()
    with pytest.raises(StageError, match="the update was refused: step 2 has loss"):
        house.run(house.job(inputs, **{**house.steps, "lr": 1e30}), warm)
    assert (warm.of(LoadedPolicies).by_key, warm.of(KeptTraining).latest) == ({}, None)
    again, _ = house.run(house.job(inputs), warm)
    assert house.same_files(again, house.run(house.job(inputs))[0])


def test_an_update_killed_by_the_system_equals_an_undisturbed_one(house: House) -> None:
    inputs = house.inputs()
    calm, _ = house.run(house.job(inputs, **house.steps))
    job = house.job(inputs, **house.steps)
    killed = attempted(job, fault="update:after_step#3")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    folder = house.store.path(Ref.parse(job["output"]))
    assert not (folder / "_manifest.json").exists()
    house.run(job)
    first, second = house.weights(calm), house.weights(folder)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert house.same_files(calm, folder)


def test_a_batch_decides_what_is_learned_and_in_passing_it_is_the_same(house: House) -> None:
    rows = house.rows()
    rewards: list[float | None] = [1, 0.5, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1]
    inputs = house.inputs(rows=rows, rewards=rewards)
    config = {"shapes": [{"name": "pods", "frac": 0.5}]}
    in_passing, report = house.run(house.job(inputs, **config))
    assert report["summary"]["shaped_out_rows"] == 6
    ctx = StageContext(
        house.store,
        {role: tuple(refs) for role, refs in inputs.items() if role != "policy"},
        house.store.writer(Ref("batch", "b" * 32)),
        5,
        Warm(),
        lambda _frac, _text="": None,
    )
    shape(ctx, UpdateConfig.model_validate(config).shaping)
    ctx.out.commit()
    given, _ = house.run(house.job({**inputs, "batch": [ctx.out.ref]}))
    assert house.same_files(in_passing, given)
    # Of a: 1 and the last 0; of b: the first 1 and the last 0; of c: the last two, which are alike.
    kept = [0, 3, 5, 7, 10, 11]
    alone, _ = house.update([rows[i] for i in kept], [rewards[i] for i in kept])
    assert house.same_files(in_passing, alone)
    other = house.store.put("batch", house.store.read(ctx.out.ref).slice(1))
    with pytest.raises(BadInputError, match="rollout a@r1h0:0 is not in the batch"):
        house.run(house.job({**inputs, "batch": [other]}))


def test_a_weight_of_rows_scales_their_gradient_and_an_empty_batch_has_no_signal(house: House, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def half(rows):\n    return {'weight': np.full(rows.num_rows, 0.5)}\n"
        "def none(rows):\n    return {'taken': np.zeros(rows.num_rows, bool)}\n"
    )
    plain, _ = house.update(house.rows(), house.rewards, optimizer="sgd", max_grad_norm=1e9)
    halved, report = house.update(
        house.rows(), house.rewards, optimizer="sgd", max_grad_norm=1e9, shapes=[f"{tmp_path / 'mine.py'}:half"]
    )
    before, after, less = (house.weights(each) for each in (house.store.path(house.policy), plain, halved))
    name = max(before, key=lambda each: float((after[each] - before[each]).abs().max()))
    assert torch.allclose(less[name] - before[name], (after[name] - before[name]) / 2, rtol=1e-3, atol=1e-8)
    assert pytest.approx(0.5) == house_weight(halved)
    inputs = house.inputs()
    _, report = house.run(
        house.job(inputs, {"may_skip": True}, shapes=[f"{tmp_path / 'mine.py'}:none"], max_zero_std_frac=1.0)
    )
    assert report["summary"]["skipped_updates"] == 1


def house_weight(folder: Path) -> float:
    """The weight of the first row in the table of an update."""
    return pq.read_table(folder / "rows.parquet").column("weight")[0].as_py()
