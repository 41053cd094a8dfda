"""Stage rollout on a real store with a tiny real policy: rows, seeds, shards, kills, warm workers, refusals."""

import hashlib
import re
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.models.policy import load_policy, new_policy, prompt_text, prompt_tokens
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.tasks.config.rollout import ROLLOUT, RolloutConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.runtime.calls import Job, execute
from tests.tasks.stages.attempts import attempted

PLAN = pa.table(
    {
        "problem_id": ["a", "b", "a"],
        "group_id": ["a@r3h0", "b@r3h0", "a@r3h1"],
        "n": pa.array([4, 3, 4], pa.int32()),
        "hint_level": pa.array([0, 0, 1], pa.int32()),
        "hint_text": [None, None, "1+2=3\n"],
        "temperature": [1.0, 0.7, 1.0],
        "max_tokens": pa.array([12, 8, 12], pa.int32()),
        "seed": [11, 12, 13],
    }
)
PROBLEMS = pa.table({"problem_id": ["b", "a"], "question": ["3 + 4 =", "1 + 2 ="], "answer": ["7", "3"]})
_TURNS = [{"role": "system", "content": "add"}, {"role": "user", "content": "1 + 2 ="}]
CHATS = pa.table({"problem_id": ["b", "a"], "question": ["3 + 4 =", None], "messages": [None, _TURNS]})
SAMPLED = ["rollout_id", "completion_tokens", "completion", "finish_reason", "seed", "prompt_tokens"]


class House:
    """A lake with a policy, problems and a plan of eleven rollouts in three groups."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root / "lake")
        self.policy = self.adopted(root / "policy", 0)
        self.num_runs = 0

    def adopted(self, folder: Path, seed: int) -> Ref:
        made = new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=64, seed=seed)
        made.model.save_pretrained(folder)
        made.tokenizer.save_pretrained(folder)
        return self.store.adopt(folder)

    def job(self, plan: pa.Table = PLAN, problems: pa.Table = PROBLEMS, **options: Any) -> dict[str, Any]:
        self.num_runs += 1
        inputs = {
            "plan": [str(self.store.put("plan", plan))],
            "problems": [str(self.store.put("problems", problems))],
            "policy": [str(options.pop("policy", self.policy))],
        }
        facts = {"round": options.pop("round", 0)}
        output = f"rollouts/{self.num_runs:032x}"
        return vars(Job("rollout", str(self.store.root), output, inputs, options, seed=5, facts=facts))

    def run(self, job: dict[str, Any], warm: Warm | None = None) -> dict[str, Any]:
        return execute(job, warm or Warm(), lambda frac, text="": None)

    def rows(self, job: dict[str, Any], columns: list[str] | None = None) -> list[dict[str, Any]]:
        return self.store.read(Ref.parse(job["output"]), columns).to_pylist()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("house"))


def test_every_row_of_the_plan_is_rolled_out_in_order_with_what_it_needs(house: House) -> None:
    job = house.job(round=3, top_p=0.9)
    report = house.run(job)
    rows = house.rows(job)
    expected = [f"{0:016x}:{g}:{i}" for g, n in (("a@r3h0", 4), ("b@r3h0", 3), ("a@r3h1", 4)) for i in range(n)]
    assert [row["rollout_id"] for row in rows] == expected
    first, middle, hinted = rows[0], rows[4], rows[7]
    # The seed of a sample: eight bytes of SHA-256 over "group seed:sample", less one bit.
    digest = hashlib.sha256(b"13:0").digest()
    assert hinted["seed"] == int.from_bytes(digest[:8], "big") >> 1
    assert (first["hint_level"], first["hint_text"], hinted["hint_level"], hinted["hint_text"]) == (
        0,
        None,
        1,
        "1+2=3\n",
    )
    assert (first["temperature"], middle["temperature"], first["top_p"], first["round"]) == (1.0, 0.7, 0.9, 3)
    assert {row["policy"] for row in rows} == {house.policy.digest}
    assert all(row["engine"].startswith("transformers ") for row in rows)
    tokenizer = tiny_tokenizer()
    # "1 + 2 =", a line break, and the hint that the completion goes on from.
    assert hinted["prompt_tokens"] == [9, 5, 10, 7, 21, 9, 18, 10, 20, 11, 21]
    assert hinted["prompt_tokens"] == prompt_tokens(tokenizer, [prompt_text(tokenizer, "1 + 2 =", None, "1+2=3\n")])[0]
    for row in rows:
        tokens = row["completion_tokens"]
        limit = 8 if row["problem_id"] == "b" else 12
        assert len(tokens) == len(row["logprobs"]) <= limit
        assert row["finish_reason"] == ("stop" if tokens[-1] == 1 else "length")
        assert row["finish_reason"] == "stop" or len(tokens) == limit
        assert 1 not in tokens[:-1]
        assert row["completion"] == tokenizer.decode(tokens, skip_special_tokens=True)
    lengths = [len(row["completion_tokens"]) for row in rows]
    cut = [row["finish_reason"] == "length" for row in rows]
    assert report["metrics"]["length/mean"] == pytest.approx(sum(lengths) / 11)
    assert report["metrics"]["length/max"] == max(lengths)
    assert report["metrics"]["length/truncated_frac"] == pytest.approx(sum(cut) / 11)
    assert report["metrics"]["data/hint_level_mean"] == pytest.approx(4 / 11)
    assert (report["summary"]["rows"], report["summary"]["tokens"]) == (11, sum(lengths))
    assert report["summary"]["tokens_generated"] == sum(lengths)
    assert {sample["question"] for sample in report["samples"]} == {"1 + 2 =", "3 + 4 ="}


def test_prompts_and_stop_strings_are_those_of_the_settings(house: House) -> None:
    plain = house.job()
    house.run(plain)
    # Characters that many rows say early; "#### " goes on behind its stop string.
    stop = [*sorted({row["completion"][2] for row in house.rows(plain) if len(row["completion"]) > 4})[:2], "##"]
    job = house.job(prompt={"system": "1 + 1 = 2", "template": "0\n{question}\n{hint}9"}, stop=stop)
    house.run(job)
    tokenizer = tiny_tokenizer()
    prompts = {row["group_id"]: tokenizer.decode(row["prompt_tokens"]) for row in house.rows(job)}
    assert prompts == {
        "a@r3h0": "1 + 1 = 2\n\n0\n1 + 2 =\n9",
        "b@r3h0": "1 + 1 = 2\n\n0\n3 + 4 =\n9",
        "a@r3h1": "1 + 1 = 2\n\n0\n1 + 2 =\n1+2=3\n9",
    }
    early = 0
    for row in house.rows(job):
        tokens, text = row["completion_tokens"], row["completion"]
        assert len(tokens) == len(row["logprobs"])
        assert tokenizer.decode(tokens, skip_special_tokens=True).startswith(text)
        assert not any(s in tokenizer.decode(tokens[:-1], skip_special_tokens=True) for s in stop)
        met = [s for s in stop if s in text]
        assert not met or (row["finish_reason"] == "stop" and text.endswith(met[0]))
        early += bool(met)
    assert early > 1


def test_recorded_logprobs_are_those_of_the_policy_at_the_temperature_of_the_plan(house: House) -> None:
    job = house.job()
    house.run(job)
    model = load_policy(house.store.path(house.policy)).model
    for row in house.rows(job):
        prompt, completion = row["prompt_tokens"], row["completion_tokens"]
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1].double()
        logp = torch.log_softmax(logits / row["temperature"], -1)[range(len(completion)), completion]
        assert row["logprobs"] == pytest.approx(logp.tolist(), abs=2e-5)


def test_neither_shards_nor_batches_nor_the_rest_of_the_plan_change_a_sample(house: House) -> None:
    whole = house.job()
    assert house.run(whole)["summary"]["shards"] == 1
    for options, shards in (({"shard_rows": 4}, 3), ({"shard_rows": 7}, 2), ({"batch_rows": 2}, 1)):
        other = house.job(**options)
        assert house.run(other)["summary"]["shards"] == shards
        assert house.rows(other, SAMPLED) == house.rows(whole, SAMPLED)
    alone = house.job(PLAN.slice(1, 1))
    house.run(alone)
    assert house.rows(alone, SAMPLED) == house.rows(whole, SAMPLED)[4:7]


def test_the_same_job_gives_the_same_bytes_warm_or_cold(house: House) -> None:
    warm = Warm()
    cold, first, second = house.job(), house.job(), house.job()
    house.run(cold)
    house.run(first, warm)
    house.run(second, warm)
    shards = [
        (house.store.path(Ref.parse(j["output"])) / "part-00000.parquet").read_bytes() for j in (cold, first, second)
    ]
    assert shards[0] == shards[1] == shards[2]


def test_a_warm_worker_that_is_given_another_policy_takes_that_one(house: House, tmp_path: Path) -> None:
    warm = Warm()
    other = house.adopted(tmp_path / "other", 1)
    house.run(house.job(), warm)
    switched, cold = house.job(policy=other), house.job(policy=other)
    house.run(switched, warm)
    house.run(cold)
    assert house.rows(switched) == house.rows(cold)
    assert {row["policy"] for row in house.rows(switched)} == {other.digest}


def test_a_kill_loses_one_shard_and_the_next_attempt_ends_in_the_same_bytes(house: House) -> None:
    undisturbed, job = house.job(shard_rows=4), house.job(shard_rows=4)
    total = house.run(undisturbed)["summary"]["tokens"]
    assert attempted(job, fault="rollout:after_shard#2").returncode == -signal.SIGKILL
    assert house.store.find(Ref.parse(job["output"])) is None
    summary = house.run(job)["summary"]
    assert (summary["shards"], summary["shards_reused"], summary["tokens"]) == (3, 2, total)
    # Of the three groups, of 4, 3 and 4 rollouts, the first two had their shards.
    assert summary["resumed"] == {
        "prompts": {"planned": 3, "kept": 2, "again": 1, "lost": 0},
        "rollouts": {"planned": 11, "kept": 7, "again": 4, "lost": 0},
    }
    last = house.rows(job)[7:]
    assert summary["tokens_generated"] == sum(len(row["completion_tokens"]) for row in last)
    for index in range(3):
        name = f"part-{index:05d}.parquet"
        pair = [house.store.path(Ref.parse(j["output"])) / name for j in (undisturbed, job)]
        assert pair[0].read_bytes() == pair[1].read_bytes()


def test_a_full_disk_ends_the_stage_with_a_sentence_and_room_lets_it_go_on_to_the_same_bytes(house: House) -> None:
    undisturbed, job = house.job(shard_rows=4), house.job(shard_rows=4)
    house.run(undisturbed)
    folder = house.store.path(Ref.parse(undisturbed["output"]))
    sizes = [(folder / f"part-{index:05d}.parquet").stat().st_size for index in range(3)]
    # The operating system refuses to let a file grow further, as it does on a full disk.
    code = (
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"def beat(frac, text=''):\n    size = {sizes[0]} if frac < 0.5 else 2000\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))"
    )
    done = attempted(job, code)
    assert done.returncode != 0
    assert "cannot be written: " in done.stderr.splitlines()[-1]
    assert "what is finished is kept" in done.stderr.splitlines()[-1]
    assert house.run(job)["summary"]["shards_reused"] >= 1
    for index in range(3):
        name = f"part-{index:05d}.parquet"
        pair = [house.store.path(Ref.parse(j["output"])) / name for j in (undisturbed, job)]
        assert pair[0].read_bytes() == pair[1].read_bytes()


def replaced(table: pa.Table, column: str, values: list[Any]) -> pa.Table:
    index = table.column_names.index(column)
    return table.set_column(index, column, pa.array(values, table.schema.field(column).type))


@pytest.mark.parametrize(
    ("plan", "problems", "message"),
    [
        (PLAN, PROBLEMS.slice(1), "the plan names problem b"),
        (PLAN, replaced(PROBLEMS, "question", ["3 + 4 =", "1 + " * 30]), "the prompt of problem a has"),
        (replaced(PLAN, "max_tokens", [12, 63, 12]), PROBLEMS, "the prompt of problem b has .* max_tokens 63"),
        (PLAN, replaced(PROBLEMS, "question", ["3 + 4 =", " \n"]), "problem a has neither a question nor messages"),
        (PLAN, CHATS, "problem a has no prompt: it has several messages"),
    ],
)
def test_a_row_that_cannot_be_rolled_out_names_its_problem(
    house: House, plan: pa.Table, problems: pa.Table, message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        house.run(house.job(plan, problems))


def test_a_policy_that_cannot_be_loaded_is_named(house: House, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("no policy")
    with pytest.raises(BadInputError, match=r"has no config\.json"):
        house.run(house.job(policy=house.store.adopt(tmp_path)))


def test_too_many_truncated_rows_fail_after_they_are_kept(house: House) -> None:
    job = house.job(replaced(PLAN, "max_tokens", [1, 1, 1]))
    report = house.run(job)
    strict = RolloutConfig(max_truncated_frac=0.0)
    sentence = ROLLOUT.breach(report, strict)
    assert re.match(r"100\.0% of .* cut off by max_tokens.*max_truncated_frac = 0\.0%", sentence)
    assert ROLLOUT.breach(report, RolloutConfig()) == ""


def test_an_empty_plan_gives_an_empty_table(house: House) -> None:
    job = house.job(PLAN.slice(0, 0))
    assert house.run(job)["summary"]["rows"] == 0
    assert house.rows(job) == []


def test_progress_never_goes_back_and_ends_at_one(house: House) -> None:
    told: list[float] = []
    execute(house.job(shard_rows=4), Warm(), lambda frac, text="": told.append(frac))
    assert told == sorted(told)
    assert told[-1] == 1.0
