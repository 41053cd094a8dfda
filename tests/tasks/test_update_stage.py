"""Stage update on a real store with a tiny real policy: gates, joins, replaced groups, warmth, kills."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from data.errors import BadInputError, CorruptArtifactError, GateError, GradusError, StageError
from data.store import Ref, Store
from models.engines.base import Request
from models.engines.hf import HfEngine
from models.logprobs import Sequences, token_logprobs
from models.policy import load_policy, new_policy
from models.tiny_tokenizer import tiny_tokenizer
from tasks.attempt import Job, execute

ROOT = Path(__file__).parents[2]
Row = dict[str, Any]
STEPS = {"epochs": 2, "minibatch_groups": 1, "lr": 1e-2}
ROW_TYPES = pa.schema(
    [
        ("rollout_id", pa.string()),
        ("problem_id", pa.string()),
        ("group_id", pa.string()),
        ("completion", pa.string()),
        ("prompt_tokens", pa.list_(pa.int32())),
        ("completion_tokens", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("finish_reason", pa.string()),
        ("hint_level", pa.int32()),
        ("policy", pa.string()),
        ("temperature", pa.float64()),
    ]
)


def policy_ref(store: Store, folder: Path, seed: int = 0) -> Ref:
    made = new_policy(tiny_tokenizer(), width=32, layers=1, heads=2, max_positions=64, seed=seed)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return store.adopt(folder)


class House:
    """A lake with a policy and rollouts of three problems, four completions each."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root / "lake")
        self.policy = policy_ref(self.store, root / "policy")
        self.other = policy_ref(self.store, root / "other", seed=1)
        self.runs = 0

    def rows(self, policy: Ref | None = None, problems: str = "abc", level: int = 0, **changes: Any) -> list[Row]:
        """Rollouts with the log-probs that the policy really has; `changes` go into the first row."""
        used = policy or self.policy
        model = load_policy(self.store.path(used), "float32").model
        prompts = [[9 + i, 10 + level] for i, _ in enumerate(problems) for _ in range(4)]
        completions = [[8 + (5 * i) % 12 + k for k in range(1 + i % 3)] + [1] for i in range(len(prompts))]
        with torch.no_grad():
            logp = token_logprobs(model, Sequences(prompts, completions), torch.ones(len(prompts))).logp
        values = [part.tolist() for part in logp.split([len(c) for c in completions])]
        rows = [
            {
                "rollout_id": f"{problems[i // 4]}@r1h{level}:{i % 4}",
                "problem_id": problems[i // 4],
                "group_id": f"{problems[i // 4]}@r1h{level}",
                "completion": "<b>text</b>",
                "prompt_tokens": prompts[i],
                "completion_tokens": completions[i],
                "logprobs": values[i],
                "finish_reason": "length" if i == 0 else "stop",
                "hint_level": level,
                "policy": used.digest,
                "temperature": 1.0,
            }
            for i in range(len(prompts))
        ]
        rows[0].update(changes)
        return rows

    def put(self, rows: list[Row]) -> Ref:
        return self.store.put("rollouts", pa.Table.from_pylist(rows, schema=ROW_TYPES))

    def score(self, rows: list[Row], rewards: list[float | None]) -> Ref:
        """Scores in another order than the rollouts."""
        table = pa.table(
            {
                "rollout_id": [r["rollout_id"] for r in rows],
                "problem_id": [r["problem_id"] for r in rows],
                "reward": pa.array(rewards, pa.float64()),
                "correct": pa.array([None if r is None else r > 0.5 for r in rewards], pa.bool_()),
            }
        )
        return self.store.put("scores", table.take(pa.array(range(len(rows))[::-1])))

    def job(self, inputs: dict[str, list[Ref]], **config: Any) -> dict[str, Any]:
        self.runs += 1
        return Job(
            stage="update",
            lake=str(self.store.root),
            output=str(Ref("checkpoints", f"{self.runs:032x}")),
            inputs={role: [str(ref) for ref in refs] for role, refs in inputs.items()},
            config=config,
            seed=5,
        ).to_json()

    def run(self, job: dict[str, Any], warm: dict[str, Any] | None = None) -> tuple[Path, dict[str, Any]]:
        report = execute(job, {} if warm is None else warm, lambda _frac, _text="": None)
        return self.store.path(Ref.parse(job["output"])), report

    def update(self, rows: list[Row], rewards: list[float | None], **config: Any) -> tuple[Path, dict[str, Any]]:
        inputs = {"rollouts": [self.put(rows)], "scores": [self.score(rows, rewards)], "policy": [self.policy]}
        return self.run(self.job(inputs, **config))


REWARDS: list[float | None] = [1, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same_files(first: Path, second: Path) -> bool:
    names = {p.name for p in first.iterdir() if p.is_file()} - {"manifest.json", "report.json"}
    assert {"model.safetensors", "optimizer.state", "rng.state", "state.json", "config.json"} <= names
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_an_update_reports_what_it_did_and_leaves_a_loadable_policy(house: House) -> None:
    rows = house.rows()
    folder, report = house.update(rows, REWARDS)
    assert report["summary"] == {
        "updates": 1,
        "tokens_trained": sum(len(row["completion_tokens"]) for row in rows),
        "groups": 3,
        "zero_std_groups": 1,
        "replaced_groups": 0,
        "unjudged_rows": 0,
    }
    metrics = report["metrics"]
    assert metrics["reward/mean"] == pytest.approx(7 / 12)
    assert metrics["reward/std"] == pytest.approx(math.sqrt(7 / 12 * 5 / 12))
    assert metrics["reward/frac_zero_std_groups"] == metrics["reward/frac_all_right"] == pytest.approx(1 / 3)
    assert metrics["length/truncated_frac"] == pytest.approx(1 / 12)
    assert metrics["mismatch/logp_diff_max"] < 1e-4
    assert metrics["policy/lr"] == pytest.approx(5e-5 / 15)
    assert {"policy/entropy", "policy/grad_norm", "perf/tokens_per_s", "mismatch/kl"} <= set(metrics)
    assert len(report["steps"]) == 1
    best, worst = report["samples"][0], report["samples"][6]
    assert (best["rollout_id"], best["reward"], best["completion"]) == ("a@r1h0:0", 1.0, "<b>text</b>")
    assert best["advantage"] == pytest.approx(0.75 / 0.5001)
    assert worst["advantage"] == pytest.approx(-0.5 / (math.sqrt(1 / 3) + 1e-4))
    assert json.loads((folder / "state.json").read_text()) == {"step": 1}
    before, after = weights(house.store.path(house.policy)), weights(folder)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    load_policy(folder, "float32")


def test_rows_that_could_not_be_judged_are_left_out_and_counted(house: House) -> None:
    rows = house.rows()
    rewards: list[float | None] = [1, None, 0, 0, *REWARDS[4:]]
    with_gap, report = house.update(rows, rewards)
    assert report["summary"]["unjudged_rows"] == 1
    kept = [i for i in range(12) if i != 1]
    without, _ = house.update([rows[i] for i in kept], [rewards[i] for i in kept])
    assert same_files(with_gap, without)


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
    assert report["metrics"]["data/hint_level_mean"] == 1.0
    kept = [*bare[8:], *level1[:4], *level2]
    alone, _ = house.update(kept, [1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 1, 1])
    first, second = weights(folder), weights(alone)
    assert all(torch.allclose(first[name], second[name], atol=1e-7) for name in first)


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
    named, _ = house.update(house.rows(), REWARDS)
    unnamed, report = house.update([{**row, "group_id": None} for row in house.rows()], REWARDS)
    assert report["summary"]["groups"] == 3
    assert same_files(named, unnamed)


Case = tuple[type[GradusError], str, Callable[[House], Any]]
FAILURES: dict[str, Case] = {
    "another policy": (
        GateError, "12 of 12 rollouts were sampled from another policy .*a@r1h0:0 from .*roll out with this policy",
        lambda h: h.update(h.rows(h.other), REWARDS),
    ),
    "no policy named": (
        GateError, "1 of 12 rollouts .*from an unnamed one",
        lambda h: h.update([{**r, "policy": r["policy"] if i else None} for i, r in enumerate(h.rows())], REWARDS),
    ),
    "other log-probs than the policy's": (
        GateError, r"sampler and trainer disagree by \d+\.\d+ nats.*most in rollout a@r1h0:0",
        lambda h: h.update(h.rows(logprobs=[-90.0, -90.0]), REWARDS),
    ),
    "no finite log-prob": (
        StageError, "no token whose log-probs are all finite",
        lambda h: h.update([{**r, "logprobs": [None] * len(r["logprobs"])} for r in h.rows()], REWARDS),
    ),
    "all groups constant": (
        GateError, "all 3 groups .*nothing to learn", lambda h: h.update(h.rows(), [1.0] * 4 + [0.0] * 8),
    ),
    "too many constant groups": (
        GateError, r"1 of 3 groups \(33.3%\).*first: that of c@r1h0:0",
        lambda h: h.update(h.rows(), REWARDS, max_zero_std_frac=0.2),
    ),
    "nothing judged": (
        GateError, "no rollout has a reward: all 12", lambda h: h.update(h.rows(), [None] * 12),
    ),
    "a reward that is not finite": (
        BadInputError, r"rollout a@r1h0:1 has a reward that is not finite \(and 1 more\)",
        lambda h: h.update(h.rows(), [1, math.nan, math.inf, *REWARDS[3:]]),
    ),
    "no prompt tokens": (
        BadInputError, "rollout a@r1h0:0 has no prompt_tokens", lambda h: h.update(h.rows(prompt_tokens=None), REWARDS),
    ),
    "an empty prompt": (
        BadInputError, "rollout a@r1h0:0 has an empty prompt", lambda h: h.update(h.rows(prompt_tokens=[]), REWARDS),
    ),
    "no log-probs": (
        BadInputError, "rollout a@r1h0:0 has no logprobs", lambda h: h.update(h.rows(logprobs=None), REWARDS),
    ),
    "too few log-probs": (
        BadInputError, "rollout a@r1h0:0 has not one log-prob for each",
        lambda h: h.update(h.rows(logprobs=[-1.0]), REWARDS),
    ),
    "tokens of another tokenizer": (
        BadInputError, "rollout a@r1h0:0 has completion_tokens that the policy does not know",
        lambda h: h.update(h.rows(completion_tokens=[9, 23]), REWARDS),
    ),
    "a token that is null": (
        BadInputError, "rollout a@r1h0:0 has prompt_tokens that the policy does not know",
        lambda h: h.update(h.rows(prompt_tokens=[9, None]), REWARDS),
    ),
    "a KL without its reference": (
        BadInputError, "kl_coef is set but there is no reference", lambda h: h.update(h.rows(), REWARDS, kl_coef=0.1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILURES.values(), ids=list(FAILURES))
def test_what_must_not_be_learnt_from_is_refused_by_name(house: House, case: Case) -> None:
    kind, message, update = case
    with pytest.raises(kind, match=message):
        update(house)
    assert not [
        p for p in (house.store.root / "checkpoints").glob("*/manifest.json") if p.parent.name.startswith("0000")
    ]


def test_rows_given_twice_or_never_scored_are_named(house: House) -> None:
    rows = house.rows()
    rollouts, scores = house.put(rows), house.score(rows, REWARDS)
    more = house.score(rows, [0.0] * 12)
    fewer = house.score(rows[:5], REWARDS[:5])
    for inputs, message in (
        ({"rollouts": [rollouts, rollouts], "scores": [scores]}, "rollout a@r1h0:0 is given twice"),
        ({"rollouts": [rollouts], "scores": [scores, more]}, "score of rollout .* is given twice"),
        ({"rollouts": [rollouts], "scores": [fewer]}, "rollout b@r1h0:1 has no score"),
    ):
        with pytest.raises(BadInputError, match=message):
            house.run(house.job({**inputs, "policy": [house.policy]}))


def test_fixed_length_needs_its_length() -> None:
    from tasks.config import UpdateConfig

    with pytest.raises(ValueError, match="needs length_tokens"):
        UpdateConfig(aggregation="fixed_length")
    assert UpdateConfig(aggregation="fixed_length", length_tokens=96).length_tokens == 96


def test_the_kl_to_a_reference_is_reported_and_pulls(house: House) -> None:
    rows = house.rows()
    inputs = {
        "rollouts": [house.put(rows)], "scores": [house.score(rows, REWARDS)],
        "policy": [house.policy], "reference": [house.other],
    }  # fmt: skip
    pulled, report = house.run(house.job(inputs, kl_coef=0.5))
    free, _ = house.update(rows, REWARDS)
    assert report["metrics"]["policy/kl_ref"] > 0
    assert not same_files(pulled, free)


def chained(house: House, warm: Callable[[], dict[str, Any]]) -> list[Path]:
    """Three updates, each of the policy that the one before made; rollouts are made anew from each."""
    folders: list[Path] = []
    policy = house.policy
    for turn in range(3):
        rows = house.rows(policy)
        inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, REWARDS)], "policy": [policy]}
        job = house.job(inputs, **STEPS, warmup_steps=5, weight_decay=0.1 * turn)
        folder, report = house.run(job, warm())
        assert report["summary"]["updates"] == 4
        folders.append(folder)
        policy = Ref("checkpoints", folder.name)
    return folders


def test_a_warm_learner_gives_the_bits_of_a_loaded_one(tmp_path: Path) -> None:
    kept: dict[str, Any] = {}
    warm = chained(House(tmp_path / "warm"), lambda: kept)
    cold = chained(House(tmp_path / "cold"), dict)
    assert all(same_files(first, second) for first, second in zip(warm, cold, strict=True))
    assert json.loads((warm[-1] / "state.json").read_text()) == {"step": 12}
    assert kept["learner"][0] == warm[-1].name
    assert {f"policy/{warm[-1].name}/auto", f"policy/{warm[-1].name}/float32"} <= set(kept)


def test_an_update_refused_half_way_leaves_no_changed_policy_in_memory(house: House) -> None:
    warm: dict[str, Any] = {
        f"policy/{house.policy.digest}/auto": load_policy(house.store.path(house.policy), "float32")
    }
    rows = house.rows()
    inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, REWARDS)], "policy": [house.policy]}
    with pytest.raises(StageError, match="the update was refused: step 2 has loss"):
        house.run(house.job(inputs, **{**STEPS, "lr": 1e30}), warm)
    assert warm == {}
    again, _ = house.run(house.job(inputs), warm)
    assert same_files(again, house.run(house.job(inputs))[0])


@pytest.mark.parametrize("damage", ["torn", "changed", "no marker"])
def test_an_interrupted_update_goes_on_from_its_newest_whole_state(house: House, damage: str) -> None:
    rows = house.rows()
    inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, REWARDS)], "policy": [house.policy]}
    calm, undisturbed = house.run(house.job(inputs, **STEPS, save_every_steps=1))
    job = house.job(inputs, **STEPS, save_every_steps=1)
    texts: list[str] = []

    def interrupted(_frac: float, text: str = "") -> None:
        if text == "step 3 of 4":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(job, {}, interrupted)
    scratch = house.store.path(Ref.parse(job["output"])) / ".scratch" / "steps"
    assert [p.name for p in scratch.iterdir()] == ["step-000003"]
    if damage == "torn":  # as if the process had died while it kept a newer state
        (scratch / "step-000004").mkdir()
        (scratch / "step-000004" / "weights.safetensors").write_bytes(b"half")
    elif damage == "changed":
        file = scratch / "step-000003" / "weights.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    else:
        (scratch / "step-000003" / "done.json").unlink()
    report = execute(job, {}, lambda _frac, text="": texts.append(text))
    assert ("step 3 of 4" in texts) is (damage != "torn")
    assert same_files(house.store.path(Ref.parse(job["output"])), calm)
    assert report["summary"] == undisturbed["summary"]
    strip = [{k: v for k, v in s.items() if not k.startswith("perf/")} for s in report["steps"]]
    assert strip == [{k: v for k, v in s.items() if not k.startswith("perf/")} for s in undisturbed["steps"]]
    assert not (house.store.path(Ref.parse(job["output"])) / ".scratch").exists()


def test_an_update_killed_by_the_system_equals_an_undisturbed_one(house: House) -> None:
    rows = house.rows()
    inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, REWARDS)], "policy": [house.policy]}
    calm, _ = house.run(house.job(inputs, **STEPS, save_every_steps=2))
    job = house.job(inputs, **STEPS, save_every_steps=2)
    code = (
        "import json, sys\nfrom tasks.attempt import execute\n"
        "execute(json.loads(sys.argv[1]), {}, lambda frac, text='': None)\n"
    )
    environment = {**os.environ, "GRADUS_FAULT": "update:after_step#3", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, json.dumps(job)]
    killed = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    folder = house.store.path(Ref.parse(job["output"]))
    assert not (folder / "manifest.json").exists()
    assert [p.name for p in (folder / ".scratch" / "steps").iterdir()] == ["step-000002"]
    house.run(job)
    first, second = weights(calm), weights(folder)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert same_files(calm, folder)


def test_a_checkpoint_whose_state_does_not_fit_is_refused(house: House, tmp_path: Path) -> None:
    folder = tmp_path / "strange"
    made = new_policy(tiny_tokenizer(), width=32, layers=1, heads=2, max_positions=64, seed=0)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    (folder / "state.json").write_text('{"step": 3}')
    house.policy = house.store.adopt(folder)
    with pytest.raises(CorruptArtifactError, match="is not a checkpoint that this version can go on from"):
        house.update(house.rows(), REWARDS)


def test_stored_rollouts_of_an_earlier_policy_are_learnt_from_if_allowed_and_their_age_is_told(house: House) -> None:
    folder, _ = house.update(house.rows(), REWARDS, lr=1e-3)
    newer = Ref("checkpoints", folder.name)
    old, fresh = house.rows(), house.rows(newer, problems="xyz")

    def update(rows: list[Row], rewards: list[float | None], **config: Any) -> dict[str, Any]:
        inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, rewards)], "policy": [newer]}
        return house.run(house.job(inputs, **config))[1]

    with pytest.raises(
        GateError, match=r"12 of 24 rollouts .* than the one being updated .*allow older ones with max_age"
    ):
        update([*old, *fresh], [*REWARDS, *REWARDS])
    for rows in (old, [*old, *fresh]):
        rewards = REWARDS * (len(rows) // 12)
        report = update(rows, rewards, max_age=1, correction="token_truncated", correction_cap=2.0)
        assert report["metrics"]["data/age_max"] == 1
        assert report["metrics"]["data/age_mean"] == pytest.approx(12 / len(rows))
        assert 0 < report["metrics"]["policy/correction_mean"] != 1
        assert report["metrics"]["policy/correction_max"] <= 2.0
    with pytest.raises(GateError, match="than the one being updated and the 1 before it"):
        update([*house.rows(house.other), *fresh], [*REWARDS, *REWARDS], max_age=5)


def test_a_correction_of_the_policys_own_rollouts_changes_nothing_beyond_rounding(house: House) -> None:
    plain, _ = house.update(house.rows(), REWARDS, warmup_steps=0)
    for how in ("token_truncated", "sequence_masked"):
        corrected, report = house.update(house.rows(), REWARDS, warmup_steps=0, correction=how)
        assert report["metrics"]["policy/correction_mean"] == pytest.approx(1.0, abs=1e-5)
        assert report["metrics"]["policy/correction_cut_frac"] == 0
        for name, weight in weights(plain).items():
            assert torch.allclose(weight, weights(corrected)[name], atol=1e-6)


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 5}])
def test_no_correction_is_taken_of_a_truncated_distribution(house: House, cut: dict[str, float]) -> None:
    types = {"top_p": pa.float64(), "top_k": pa.int32()}
    rows = house.rows()
    table = pa.Table.from_pylist(rows, schema=ROW_TYPES)
    for name, value in cut.items():
        table = table.append_column(name, pa.array([value] * len(rows), types[name]))
    inputs = {"rollouts": [house.store.put("rollouts", table)], "scores": [house.score(rows, REWARDS)]}
    job = house.job({**inputs, "policy": [house.policy]}, correction="token_masked")
    with pytest.raises(BadInputError, match=r"a@r1h0:0 was sampled with top_p or top_k, where no correction holds"):
        house.run(job)
    house.run(house.job({**inputs, "policy": [house.policy]}))


def truncated_rows(house: House, sampler: Ref, top_p: float, top_k: int) -> tuple[dict[str, list[Ref]], list[Row]]:
    """The house's rollouts drawn anew by the engine, with top-p and top-k; `sampler` draws what the policy signs."""
    rows = house.rows()
    asked = [
        Request(r["rollout_id"], tuple(r["prompt_tokens"]), seed=i, max_tokens=6, top_p=top_p, top_k=top_k)
        for i, r in enumerate(rows)
    ]
    for done in HfEngine(load_policy(house.store.path(sampler), "float32")).generate(asked):
        rows[done.index].update(completion_tokens=list(done.tokens), logprobs=list(done.logprobs))
    table = pa.Table.from_pylist(rows, schema=ROW_TYPES)
    for name, value, kind in (("top_p", top_p, pa.float64()), ("top_k", top_k, pa.int32())):
        table = table.append_column(name, pa.array([value] * len(rows), kind))
    inputs = {"rollouts": [house.store.put("rollouts", table)], "scores": [house.score(rows, REWARDS)]}
    return {**inputs, "policy": [house.policy]}, rows


@pytest.mark.parametrize(("top_p", "top_k"), [(0.5, 0), (0.8, 5)])
def test_truncated_rollouts_are_corrected_where_the_trainers_side_is_cut_likewise(
    house: House, top_p: float, top_k: int
) -> None:
    inputs, _ = truncated_rows(house, house.policy, top_p, top_k)
    for correction, steps in (("none", {}), ("token_truncated", STEPS), ("sequence_masked", {})):
        _, report = house.run(house.job(inputs, truncation="masked", correction=correction, **steps))
        assert report["metrics"]["mismatch/logp_diff_max"] < 1e-4
        assert report["metrics"]["mismatch/outside_frac"] == 0
        assert report["metrics"].get("policy/correction_mean", 1.0) == pytest.approx(1.0, abs=1e-3)
    # Refused, which is the default, compares with the full softmax: off by the mass that was cut.
    with pytest.raises(BadInputError, match="no correction holds") as refused:
        house.run(house.job(inputs, correction="token_truncated"))
    assert "update with truncation = masked" in refused.value.hint
    with pytest.raises(GateError, match="sampler and trainer disagree") as gate:
        house.run(house.job(inputs, max_logp_diff=0.1))
    assert "sampled with top_p or top_k: update with truncation = masked" in gate.value.hint


def test_tokens_that_the_policy_would_have_cut_off_are_counted_and_bounded(house: House) -> None:
    inputs, rows = truncated_rows(house, house.other, 1.0, 3)
    settings = {"truncation": "masked", "correction": "token_masked", "max_logp_diff": 9.0}
    with pytest.raises(GateError, match=r"\d\d\.\d% of the sampled tokens lie outside .*most in rollout [abc]@r1h0:\d"):
        house.run(house.job(inputs, **settings))
    _, report = house.run(house.job(inputs, **settings, max_outside_frac=1.0))
    model = load_policy(house.store.path(house.policy), "float32").model
    outside = 0
    for row in rows:
        ids = torch.tensor([[*row["prompt_tokens"], *row["completion_tokens"]]])
        with torch.no_grad():
            best = model(ids).logits[0, len(row["prompt_tokens"]) - 1 : -1].topk(3).indices.tolist()
        outside += sum(token not in top for token, top in zip(row["completion_tokens"], best, strict=True))
    num_tokens = sum(len(row["completion_tokens"]) for row in rows)
    assert report["metrics"]["mismatch/outside_frac"] == pytest.approx(outside / num_tokens)
    assert report["metrics"]["policy/correction_cut_frac"] >= outside / num_tokens > 0.1


def test_rows_without_truncation_are_masked_by_nothing(house: House) -> None:
    plain, _ = house.update(house.rows(), REWARDS, correction="token_truncated")
    masked, report = house.update(house.rows(), REWARDS, correction="token_truncated", truncation="masked")
    assert same_files(plain, masked)
    assert "mismatch/outside_frac" not in report["metrics"]
