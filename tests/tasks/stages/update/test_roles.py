"""An update with rows of other origins, a teacher or a critic, and the table that it leaves."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gradus.data.errors import BadInputError, GateError
from gradus.data.lake.store import Ref
from gradus.models.policy import new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.tasks.config.learning import UpdateConfig
from tests.tasks.stages.update.conftest import ROW_TYPES, House, Row, state_folder

SPAN = pa.struct(
    [
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("role", pa.string()),
        ("source", pa.string()),
        ("trained", pa.bool_()),
    ]
)
TYPES = pa.schema(
    [*ROW_TYPES, ("origin", pa.string()), ("spans", pa.list_(SPAN)), ("trained_prompt_tokens", pa.list_(pa.int32()))]
)
EXPERT = {"origin": "expert", "logprobs": None, "temperature": None, "policy": None, "group_id": None}
LUFFY = [{"origin": "expert", "loss": "luffy"}]


def given(problem: str, **changes: Any) -> Row:
    """A worked solution of a problem."""
    row: Row = {
        "rollout_id": f"expert:{problem}", "problem_id": problem, "completion": "text",
        "prompt_tokens": [9, 10], "completion_tokens": [8, 9, 10, 1], "finish_reason": "stop",
    }  # fmt: skip
    return {**row, **EXPERT, **changes}


def inputs(house: House, rows: list[Row], rewards: list[float | None], **roles: Ref) -> dict[str, list[Ref]]:
    table = pa.Table.from_pylist(rows, schema=TYPES)
    others = {name: [ref] for name, ref in roles.items()}
    return {
        "rollouts": [house.store.put("rollouts", table)],
        "scores": [house.score(rows, rewards)],
        "policy": [house.policy],
        **others,
    }


def table_of(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(io.BytesIO((folder / "rows.parquet").read_bytes())).to_pylist()


def test_a_given_row_joins_the_group_of_its_problem(house: House) -> None:
    # Group a has rewards 1 0 0 0 and the expert's 1; no expert wrote of b; nobody sampled d.
    rows = [*house.rows(), given("a"), given("d")]
    folder, report = house.run(house.job(inputs(house, rows, [*house.rewards, 1, 1]), origin_losses=LUFFY))
    found = {row["rollout_id"]: row for row in table_of(folder)}
    assert report["summary"]["unjoined_rows"] == 1
    assert "expert:d" not in found
    # mean 0.4, std (ddof 1) of 1 0 0 0 1: sqrt(1.2 / 4) = 0.5477.
    assert found["expert:a"]["advantage"] == pytest.approx(0.6 / (0.5477226 + 1e-4), rel=1e-5)
    assert found["a@r1h0:1"]["advantage"] == pytest.approx(-0.4 / (0.5477226 + 1e-4), rel=1e-5)
    assert found["expert:a"]["origin"] == "expert"
    assert found["expert:a"]["mismatch"] is None
    assert found["a@r1h0:1"]["mismatch"] == pytest.approx(0.0, abs=1e-4)
    assert report["metrics"]["policy/expert_shaping_mean"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("short", "terms"),
    [
        ({}, [{"loss": "clip"}]),
        (
            {"kl_coef": 0.2, "entropy_coef": 0.01},
            [
                {"loss": "clip"},
                {"loss": "k3", "coefficient": 0.2, "over": "step"},
                {"loss": "entropy", "coefficient": 0.01, "over": "step"},
            ],
        ),
        (
            {"origin_losses": LUFFY, "weights": ["top_entropy"]},
            [
                {"loss": "clip", "without": {"origin": "expert"}, "over": "step"},
                {"loss": "luffy", "rows": {"origin": "expert"}, "over": "step", "name": "expert_"},
            ],
        ),
    ],
    ids=["one loss", "regularisers", "origins"],
)
def test_a_short_spelling_is_its_terms_to_the_bit(
    house: House, short: dict[str, Any], terms: list[dict[str, Any]]
) -> None:
    rows, rewards = house.rows(), house.rewards
    if "origin_losses" in short:
        rows, rewards = [*rows, given("a")], [*rewards, 1]
    given_rows = inputs(house, rows, rewards, reference=house.other)
    weights = {key: short[key] for key in ("weights",) if key in short}
    written, report = house.run(house.job(given_rows, terms=terms, **weights, **house.steps))
    spelt, expected = house.run(house.job(given_rows, **short, **house.steps))
    assert house.same_files(written, spelt)
    assert [sorted(step) for step in report["steps"]] == [sorted(step) for step in expected["steps"]]


def test_a_term_of_some_rows_is_divided_by_their_own_tokens(house: House) -> None:
    # Fine-tuning on what was right alone, as an update of those rows alone.
    terms = [{"loss": "sft", "rows": {"correct": True}}]
    rows, config = house.rows(), {"terms": terms, "warmup_steps": 0, "max_grad_norm": 1e9}
    found, report = house.run(house.job(inputs(house, rows, house.rewards), **config))
    right = [i for i, reward in enumerate(house.rewards) if reward == 1]
    alone = inputs(house, [rows[i] for i in right], [house.rewards[i] for i in right])
    expected, other = house.run(house.job(alone, loss="sft", warmup_steps=0, max_grad_norm=1e9))
    assert report["metrics"]["policy/loss"] == pytest.approx(other["metrics"]["policy/loss"], rel=1e-5)
    for name, weight in house.weights(expected).items():
        assert torch.allclose(house.weights(found)[name], weight, atol=1e-6), name
    table = {row["rollout_id"]: row["zero_gradient"] for row in table_of(found)}
    assert [table[row["rollout_id"]] for row in rows] == [reward != 1 for reward in house.rewards]


@pytest.mark.parametrize(
    ("rows", "message"),
    [({"nonesuch": 1}, "rows have no column nonesuch"), ({"hint_level": "x"}, "'x' is no value of the column hint_l")],
)
def test_a_term_of_rows_that_cannot_be_is_a_sentence(house: House, rows: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        house.update(house.rows(), house.rewards, terms=[{"loss": "clip", "rows": rows}])


def test_given_rows_alone_are_fine_tuned_on_without_a_policy_gate(house: House) -> None:
    rows, sft = [given("a"), given("b", completion_tokens=[9, 1])], [{"origin": "expert", "loss": "sft"}]
    folder, report = house.run(house.job(inputs(house, rows, [1, 1]), origin_losses=sft))
    assert {row["rollout_id"]: row["zero_gradient"] for row in table_of(folder)} == {
        "expert:a": False,
        "expert:b": False,
    }
    assert not [name for name in report["metrics"] if name.startswith("mismatch/")]
    with pytest.raises(GateError, match="rewards without variance"):
        house.run(house.job(inputs(house, rows, [1, 1]), origin_losses=LUFFY))
    with pytest.raises(GateError, match="no rollout has a reward: all 12 judgements failed"):  # of the policy's own
        house.run(house.job(inputs(house, [*house.rows(), given("a")], [*[None] * 12, 1]), origin_losses=sft))


def test_rows_that_nobody_sampled_are_refused_without_a_loss_for_them(house: House) -> None:
    rows = [*house.rows(), given("a")]
    with pytest.raises(BadInputError, match=r"rollout expert:a has no logprobs") as error:
        house.run(house.job(inputs(house, rows, [*house.rewards, 1])))
    assert "origin_losses" in error.value.hint
    own = [*house.rows(), given("a", origin="own")]
    with pytest.raises(GateError, match="another policy"):
        house.run(house.job(inputs(house, own, [*house.rewards, 1]), origin_losses=LUFFY))


@pytest.mark.slow
def test_spans_say_which_tokens_carry_loss(house: House) -> None:
    rows = house.rows()
    tool = {"role": "tool", "source": "observed", "trained": False}
    said = {"role": "assistant", "source": "sampled", "trained": True}
    length = len(rows[2]["completion_tokens"])
    assert length == 4
    rows[2]["spans"] = [{"start": 0, "end": 1, **said}, {"start": 1, "end": 3, **tool}, {"start": 3, "end": 4, **said}]
    rows[2]["logprobs"] = [rows[2]["logprobs"][0], None, -50.0, rows[2]["logprobs"][3]]  # of what a tool wrote
    folder, report = house.run(house.job(inputs(house, rows, house.rewards)))
    assert report["metrics"]["mismatch/logp_diff_max"] < 1e-3
    without = house.rows()
    without[2]["logprobs"] = [without[2]["logprobs"][0], None, None, without[2]["logprobs"][3]]
    gaps, _ = house.run(house.job(inputs(house, without, house.rewards)))
    assert (folder / "model.safetensors").read_bytes() == (gaps / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "spans", [[(0, 1), (2, 4)], [(1, 4)], [(0, 3)], [(0, 3), (3, 2)], []], ids=["gap", "late", "short", "back", "none"]
)
def test_spans_that_do_not_cover_a_row_are_refused_by_name(house: House, spans: list[tuple[int, int]]) -> None:
    rows = house.rows()
    rows[2]["spans"] = [{"start": a, "end": b, "role": "", "source": "sampled", "trained": True} for a, b in spans]
    with pytest.raises(BadInputError, match=r"rollout a@r1h0:2 has spans that do not cover"):
        house.run(house.job(inputs(house, rows, house.rewards)))


@pytest.mark.slow
def test_a_row_may_be_trained_for_another_prompt_than_it_was_sampled_from(house: House) -> None:
    hinted = house.rows(level=1)
    bare = [{**row, "trained_prompt_tokens": house.rows()[i]["prompt_tokens"]} for i, row in enumerate(hinted)]
    folder, report = house.run(house.job(inputs(house, bare, house.rewards)))
    assert "mismatch/logp_diff_mean" not in report["metrics"]
    plain = [{**row, "prompt_tokens": house.rows()[i]["prompt_tokens"]} for i, row in enumerate(hinted)]
    other, _ = house.run(house.job(inputs(house, plain, house.rewards), max_logp_diff=1e9))
    assert (folder / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_the_table_of_an_update_has_a_row_for_each_rollout(house: House) -> None:
    folder, _ = house.run(house.job(inputs(house, house.rows(), house.rewards), keep_logprobs=True))
    rows = table_of(folder)
    assert [row["rollout_id"] for row in rows] == [row["rollout_id"] for row in house.rows()]
    # Rewards 1 0 0 0: mean 0.25, std 0.5 (ddof 1); group c is all right.
    scale = 0.5 + 1e-4
    assert [row["advantage"] for row in rows[:4]] == pytest.approx([0.75 / scale, *[-0.25 / scale] * 3])
    assert [row["zero_gradient"] for row in rows] == [False] * 8 + [True] * 4
    assert [row["weight"] for row in rows] == [1.0] * 12
    assert [row["reward"] for row in rows] == house.rewards
    for row, sampled in zip(rows, house.rows(), strict=True):
        assert row["logprobs"] == pytest.approx(sampled["logprobs"], abs=1e-4)
    without, _ = house.run(house.job(inputs(house, house.rows(), house.rewards)))
    assert {row["logprobs"] is None for row in table_of(without)} == {True}


def test_a_row_that_no_step_took_says_so(house: House) -> None:
    folder, _ = house.run(house.job(inputs(house, house.rows(), house.rewards), minibatch_groups=1))
    assert [row["zero_gradient"] for row in table_of(folder)] == [False] * 8 + [None] * 4


DISTIL = {"loss": "distil", "teacher_top_k": 5}


@pytest.mark.slow
def test_a_teacher_is_learnt_from_and_needed(house: House) -> None:
    folder, report = house.run(
        house.job(inputs(house, house.rows(), [1.0] * 12, teacher=house.other), **DISTIL, lr=0.01, epochs=8)
    )
    losses = [step["policy/loss"] for step in report["steps"]]
    assert losses[-1] < 0.7 * losses[0]
    assert 0 < report["metrics"]["policy/teacher_mass"] < 1
    assert (folder / "model.safetensors").exists()
    with pytest.raises(BadInputError, match="needs a teacher") as error:
        house.run(house.job(inputs(house, house.rows(), house.rewards), **DISTIL))
    assert error.value.hint == "give --teacher"


def test_a_teacher_is_asked_for_the_tokens_that_were_sampled(house: House) -> None:
    settings: dict[str, Any] = {"loss": "teacher_kl", "epochs": 1, "minibatch_groups": 0}
    rows: list[Row] = house.rows()
    rewards: list[float | None] = [1.0] * 12
    _, alike = house.run(house.job(inputs(house, rows, rewards, teacher=house.policy), **settings))
    assert alike["metrics"]["policy/loss"] == pytest.approx(0.0, abs=1e-9)
    _, report = house.run(house.job(inputs(house, rows, rewards, teacher=house.other), **settings))
    # What the sampler recorded is what the policy has; what `other` has of the same tokens comes from rows of its own.
    pairs = zip(rows, house.rows(house.other), strict=True)
    gaps = [ours - theirs for one, two in pairs for ours, theirs in zip(one["logprobs"], two["logprobs"], strict=True)]
    assert report["metrics"]["policy/teacher_gap"] == pytest.approx(sum(gaps) / len(gaps), abs=1e-5)
    loss = sum(gap**2 / 2 for gap in gaps) / len(gaps)
    assert report["metrics"]["policy/loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["teacher_kl", "distil"])
def test_teachers_are_asked_of_their_own_rows_alone(house: House, loss: str) -> None:
    rows: list[Row] = house.rows()
    settings: dict[str, Any] = {"loss": loss, "teacher_top_k": 5, "epochs": 1, "minibatch_groups": 0}
    given = {**inputs(house, rows, [1.0] * 12, teacher=house.policy), "teachers": [house.other]}

    def pull(**teachers: Any) -> float:
        _, report = house.run(house.job(given, teachers=teachers, **settings))
        return report["metrics"]["policy/loss"]

    _, of_other = house.run(house.job(inputs(house, rows, [1.0] * 12, teacher=house.other), **settings))
    assert pull(second={}) == pytest.approx(of_other["metrics"]["policy/loss"], rel=1e-6)
    assert pull(second={"problem_id": "z"}) == pytest.approx(0.0, abs=1e-6)  # the usual one is the policy itself
    parts = [pull(second={"problem_id": each}) for each in "abc"]
    assert sum(parts) == pytest.approx(of_other["metrics"]["policy/loss"], rel=1e-4)
    assert pull(second={"problem_id": ("a", "c")}) == pytest.approx(parts[0] + parts[2], rel=1e-4)
    if loss == "teacher_kl":  # the pull of b, from rows that `other` has of the same tokens
        pairs = [*zip(rows, house.rows(house.other), strict=True)]
        gaps = {
            one["rollout_id"]: [ours - his for ours, his in zip(one["logprobs"], two["logprobs"], strict=True)]
            for one, two in pairs
        }
        of_b = sum(gap**2 / 2 for name, each in gaps.items() if name.startswith("b") for gap in each)
        assert parts[1] == pytest.approx(of_b / sum(map(len, gaps.values())), rel=1e-4)


@pytest.mark.slow
def test_the_first_of_several_teachers_that_has_a_row_teaches_it(house: House) -> None:
    rows: list[Row] = house.rows()
    given = {**inputs(house, rows, [1.0] * 12), "teachers": [house.policy, house.other]}
    settings: dict[str, Any] = {"loss": "teacher_kl", "epochs": 1, "minibatch_groups": 0}
    both = {"one": {"problem_id": ("a", "b")}, "two": {"hint_level": 0}}
    _, mixed = house.run(house.job(given, teachers=both, **settings))
    swapped = {**given, "teachers": [house.other], "teacher": [house.policy]}
    _, of_c = house.run(house.job(swapped, teachers={"two": {"problem_id": "c"}}, **settings))
    assert mixed["metrics"]["policy/loss"] == pytest.approx(of_c["metrics"]["policy/loss"], rel=1e-5)
    assert mixed["metrics"]["policy/loss"] > 1e-3


@pytest.mark.parametrize(
    ("teachers", "num", "said"),
    [
        (
            {"one": {"problem_id": "a"}},
            1,
            "rollout b@r1h0:0 is of none of update.teachers; name its rows there, or set",
        ),
        ({"one": {"domain": "a"}}, 1, "update.teachers.one: rows have no column domain; take one of "),
        ({"one": {"hint_level": "high"}}, 1, "update.teachers.one: 'high' is no value of the column hint_level"),
        ({"one": {}, "two": {}}, 1, "update.teachers has 2 roles, and 1 policies are given; give --teachers for each"),
    ],
)
def test_rows_that_nobody_teaches_are_refused(house: House, teachers: Any, num: int, said: str) -> None:
    given = {**inputs(house, house.rows(), [1.0] * 12), "teachers": [house.other] * num}
    with pytest.raises(BadInputError) as refused:
        house.run(house.job(given, loss="teacher_kl", teachers=teachers))
    assert str(refused.value).startswith(said)


def test_teachers_without_a_loss_that_reads_them_are_refused() -> None:
    with pytest.raises(ValueError, match="teachers: no loss learns from one; take teacher_kl or distil"):
        UpdateConfig.model_validate({"teachers": {"one": {}}})


def test_a_teacher_of_another_vocabulary_is_refused(house: House, tmp_path: Path) -> None:
    made = new_policy(tiny_tokenizer(), width=32, layers=1, heads=2, max_positions=64, seed=3)
    folder = tmp_path / "teacher"
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    body = json.loads((folder / "tokenizer.json").read_text())
    words = body["model"]["vocab"]
    first, second = sorted(words, key=words.get)[-2:]
    words[first], words[second] = words[second], words[first]
    (folder / "tokenizer.json").write_text(json.dumps(body))
    teacher = house.store.adopt(folder)
    with pytest.raises(BadInputError, match="another vocabulary than the policy"):
        house.run(house.job(inputs(house, house.rows(), house.rewards, teacher=teacher), **DISTIL))


@pytest.mark.slow
def test_a_critic_is_kept_in_the_checkpoint_and_goes_on(house: House) -> None:
    settings = {"advantage": "gae", "epochs": 2, "critic": {"lr": 0.01}}
    first, report = house.run(house.job(inputs(house, house.rows(), house.rewards), **settings))
    assert {"critic.safetensors", "critic_optimizer.safetensors"} <= {p.name for p in state_folder(first).iterdir()}
    assert report["steps"][0]["critic/explained_variance"] == 0.0  # of a critic that knows nothing
    policy = Ref("checkpoints", first.name)
    rows = house.rows(policy)
    following = {**inputs(house, rows, house.rewards), "policy": [policy]}
    second, later = house.run(house.job(following, **settings))
    assert later["steps"][0]["critic/explained_variance"] > 0.05
    name = "critic.safetensors"
    assert (state_folder(second) / name).read_bytes() != (state_folder(first) / name).read_bytes()
    advantages = {row["rollout_id"]: row["advantage"] for row in table_of(second)}
    assert len(set(advantages.values())) == 12  # one a token, not one a group


@pytest.mark.slow
def test_an_interrupted_update_with_a_critic_ends_as_an_undisturbed_one(house: House) -> None:
    settings = {"advantage": "gae", "epochs": 3, "critic": {"lr": 0.01}}
    given_inputs = inputs(house, house.rows(), house.rewards)
    calm, _ = house.run(house.job(given_inputs, **settings))
    job = house.job(given_inputs, **settings)
    house.interrupt(job, "step 2 of 3")
    folder, _ = house.run(job)
    assert house.same_files(folder, calm)
    assert (folder / "rows.parquet").is_file()
    assert (state_folder(folder) / "critic.safetensors").is_file()


def test_a_critic_learns_from_groups_that_have_no_variance_in_themselves(house: House) -> None:
    rewards: list[float | None] = [1.0] * 4 + [0.0] * 8
    _, report = house.run(house.job(inputs(house, house.rows(), rewards), advantage="gae"))
    assert report["metrics"]["policy/grad_norm"] > 0
    with pytest.raises(GateError, match="all 3 groups have rewards without variance"):
        house.run(house.job(inputs(house, house.rows(), rewards)))


def test_the_progress_of_a_step_says_how_quick_it_was(house: House) -> None:
    from gradus.tasks.host.processes import Warm
    from gradus.tasks.runtime.calls import execute

    texts: list[str] = []
    job = house.job(inputs(house, house.rows(), house.rewards))
    execute(job, Warm(), lambda _frac, text="": texts.append(text))
    (said,) = [text for text in texts if text.startswith("step")]
    assert re.fullmatch(r"step 1 of 1: [\d,]+ tokens/s", said)


def test_a_teacher_with_padded_embeddings_is_asked_for_the_policys_tokens_alone(house: House, tmp_path: Path) -> None:
    made = new_policy(tiny_tokenizer(), width=32, layers=1, heads=2, max_positions=64, seed=3)
    made.model.resize_token_embeddings(128)
    folder = tmp_path / "teacher"
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    teacher = house.store.adopt(folder)
    settings = {"loss": "distil", "teacher_top_k": 500}
    _, report = house.run(house.job(inputs(house, house.rows(), house.rewards, teacher=teacher), **settings))
    assert 0 < report["metrics"]["policy/teacher_mass"] < 1  # what the padding has is the rest
