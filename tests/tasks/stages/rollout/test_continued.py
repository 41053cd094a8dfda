"""Rollouts that continue stored ones or take them up again, by the bundled policy and against tokens by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from gradus.data.errors import BadInputError
from gradus.data.lake.schema import PROBLEMS, ROLLOUTS, cast_to_schema
from gradus.data.lake.store import Ref, Store
from gradus.data.package import package_file
from gradus.models.engines.hf import BOUNDS
from gradus.models.policy import PromptSide, load_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.learning_rows import mismatch
from gradus.models.training.passes import Budget, all_tokens
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.runtime.calls import Job, execute
from gradus.tasks.stages.rollout.groups import Planned
from gradus.tasks.stages.rollout.parents import Parents
from gradus.tasks.stages.update.rows import learning_rows_of, refuse_spans

Row = dict[str, Any]
_ASKED = {"problem_id": ["a", "b"], "question": ["12 + 7 + 5 =", "30 + 4 ="], "answer": ["24", "34"]}
ASKED = cast_to_schema(pa.table(_ASKED), PROBLEMS)
SIDE = PromptSide(tiny_tokenizer(), 64, (1,))
SAMPLED = ("temperature", "top_p", "top_k", "seed", "policy", "engine", "finish_reason")


class House:
    """A lake with the bundled policy and eight rollouts of two problems."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)
        self.policy = self.store.adopt(package_file("data", "samples") / "policy")
        self.warm, self.runs = Warm(), 0
        self.parents = self.run([row(p, f"{p}@r1h0", n=4) for p in "ab"])
        self.rows = {each["rollout_id"]: each for each in self.store.read(self.parents).to_pylist()}

    def run(self, plan: list[Row], parents: tuple[Ref, ...] = (), **options: Any) -> Ref:
        self.runs += 1
        inputs = {
            "plan": [str(self.store.put("plan", pa.Table.from_pylist(plan)))],
            "problems": [str(self.store.put("problems", ASKED))],
            "policy": [str(self.policy)],
            "parents": list(map(str, parents)),
        }
        given = {role: refs for role, refs in inputs.items() if refs}
        output = Ref("rollouts", f"{self.runs:016x}" * 2)
        job = Job("rollout", str(self.store.root), str(output), given, options, seed=5, facts={"round": self.runs})
        report: Row = dict(execute(vars(job), self.warm, lambda frac, text="": None))
        self.generated = report["summary"]["tokens_generated"]
        return output

    def forced(self, rows: pa.Table) -> dict[str, float]:
        """Mismatch between the recorded log-probs and those of a forced pass of the trainer."""
        known = {
            "reward": pa.array([0.0] * rows.num_rows),
            "correct": pa.array([True] * rows.num_rows),
            "group": pa.array([0] * rows.num_rows),
        }
        for name, values in known.items():
            rows = rows.append_column(name, values)
        learned = learning_rows_of(rows, UpdateConfig())
        model = load_policy(self.store.path(self.policy), "float32").model
        with torch.no_grad():
            logp = all_tokens(model, learned, Budget(4096), lambda _: None).logp
        self.counted = int(learned["compared"].sum())
        return mismatch(learned, logp)


def row(problem: str, name: str, **more: Any) -> Row:
    known = {"n": 1, "hint_level": 0, "temperature": 1.0, "max_tokens": 60, "seed": 3, "group_id": name}
    return {"problem_id": problem, **known, **more}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("house"))


def test_a_continued_rollout_is_whole_and_the_trainer_agrees_with_its_log_probs(house: House) -> None:
    ended = [name for name, each in house.rows.items() if each["finish_reason"] == "stop"]
    first, second = ended[0], ended[-1]
    of = {name: house.rows[name]["problem_id"] for name in (first, second)}
    plan = [
        row(of[first], "t", parent=first, branch_at=-1, inserted="\n1", inherits="trained", replaces=True, n=2),
        row(of[second], "c", parent=second, branch_at=3),
        row("a", "plain"),
    ]
    table = house.store.read(house.run(plan, (house.parents,)))
    rows = table.to_pylist()
    assert [each["rollout_id"].partition(":")[2] for each in rows] == ["t:0", "t:1", "c:0", "plain:0"]
    parent, other = house.rows[first], house.rows[second]
    kept = len(parent["completion_tokens"]) - 1
    for each in rows[:2]:
        tokens, logprobs = each["completion_tokens"], each["logprobs"]
        assert each["prompt_tokens"] == parent["prompt_tokens"]
        assert tokens[: kept + 2] == [*parent["completion_tokens"][:-1], 21, 9]  # "\n" is 21 and "1" is 9
        assert logprobs[:kept] == parent["logprobs"][:-1]
        assert [at for at, value in enumerate(logprobs) if value is None] == [kept, kept + 1]
        span = {"role": "assistant"}
        assert each["spans"] == [
            {"start": 0, "end": kept, "source": "sampled", "trained": True, **span},
            {"start": kept, "end": kept + 2, "source": "inserted", "trained": False, **span},
            {"start": kept + 2, "end": len(tokens), "source": "sampled", "trained": True, **span},
        ]
        assert (each["parent"], each["replaces"]) == (first, True)
        assert each["completion"] == tiny_tokenizer().decode(tokens, skip_special_tokens=True)
        assert len(tokens) - kept - 2 <= 60
    assert rows[0]["seed"] != rows[1]["seed"]
    again = rows[2]
    assert again["completion_tokens"][:3] == other["completion_tokens"][:3]
    assert [(s["source"], s["trained"]) for s in again["spans"]] == [("sampled", False), ("sampled", True)]
    assert (again["replaces"], rows[3]["parent"], rows[3]["spans"]) == (None, None, None)
    found = house.forced(table)
    assert house.counted == sum(len(each["completion_tokens"]) for each in rows) - 4
    assert found["mismatch/logp_diff_mean"] < BOUNDS["float32"]
    assert found["mismatch/masked_frac"] == 0.0


def test_a_continued_rollout_can_be_continued_and_keeps_what_nobody_sampled(house: House) -> None:
    first = next(name for name, each in house.rows.items() if each["finish_reason"] == "stop")
    one = row(house.rows[first]["problem_id"], "one", parent=first, branch_at=2, inserted="+1", inherits="trained")
    made = house.run([one], (house.parents,))
    name = house.store.read(made).column("rollout_id")[0].as_py()
    two = row(house.rows[first]["problem_id"], "two", parent=name, branch_at=5, inserted="9", inherits="trained")
    (found,) = house.store.read(house.run([two], (house.parents, made))).to_pylist()
    sources = [(s["start"], s["source"], s["trained"]) for s in found["spans"]]
    assert sources == [
        (0, "sampled", True),
        (2, "inserted", False),
        (4, "sampled", True),
        (5, "inserted", False),
        (6, "sampled", True),
    ]
    assert [value is None for value in found["logprobs"][:7]] == [False, False, True, True, False, True, False]


def test_a_rollout_that_is_taken_up_again_is_the_stored_one_under_its_own_id(house: House) -> None:
    names = list(house.rows)
    plan = [
        row("b", "again", recall=names[5], plan_id="again", wave=2, call=0),
        row("a", "fresh", plan_id="fresh", wave=2, call=0),
        row("a", "again", recall=names[0], plan_id="again.1", wave=2, call=0),
    ]
    rows = house.store.read(house.run(plan, (house.parents,), shard_rows=2)).to_pylist()
    assert [each["recall"] for each in rows] == [names[5], None, names[0]]
    assert [each["group_id"] for each in rows] == ["again", "fresh", "again"]
    assert house.generated == len(rows[1]["completion_tokens"])
    for each, name in ((rows[0], names[5]), (rows[2], names[0])):
        stored = house.rows[name]
        same = ("problem_id", "completion", "prompt_tokens", "completion_tokens", "logprobs", "spans", *SAMPLED)
        assert {key: each[key] for key in same} == {key: stored[key] for key in same}
        assert (each["round"], each["sample"], each["rollout_id"][:16]) == (house.runs, 0, f"{house.runs:016x}")
    alone = house.store.read(house.run([row("a", "x", recall=names[1])], (house.parents,))).to_pylist()
    assert alone[0]["completion_tokens"] == house.rows[names[1]]["completion_tokens"]


NAMES = ["k:a:0", "k:a:1", "k:b:0", "k:t:0"]
STORED = pa.table(
    {
        "rollout_id": NAMES,
        "problem_id": ["a", "a", "b", "a"],
        "completion": ["1+2=3", None, "3", "text alone"],
        "prompt_tokens": pa.array([[9, 5], [9, 5], [9], None], pa.list_(pa.int32())),
        "completion_tokens": pa.array([[9, 18, 10, 20, 11, 1], None, [99, 1], None], pa.list_(pa.int32())),
        "logprobs": pa.array([[-0.1, -0.2, -0.3, -0.4, -0.5, -0.6], None, [-1, -1], None], pa.list_(pa.float32())),
        "temperature": [1.0, 1.0, 1.0, 1.0],
        "top_p": [1.0, 1.0, 1.0, 1.0],
        "top_k": pa.array([0, 0, 0, 0], pa.int32()),
    }
)


def planned(*rows: Row, side: PromptSide | None = SIDE) -> Planned:
    plan, stored = pa.Table.from_pylist(list(rows)), cast_to_schema(STORED, ROLLOUTS)
    return Planned(plan, ASKED, side, RolloutConfig(), 0, 0, Parents(stored, plan, side))


REFUSED = [
    ({"parent": "gone"}, "continues rollout gone, which the rollouts given as parents do not hold"),
    ({"recall": "gone"}, "takes up again rollout gone, which the rollouts given as parents do not hold"),
    ({"parent": NAMES[0], "branch_at": 7}, "cuts rollout k:a:0 at token 7, and it has 6"),
    ({"parent": NAMES[0], "branch_at": -7}, "cuts rollout k:a:0 at token -7, and it has 6"),
    ({"parent": NAMES[1]}, "rollout k:a:1, whose request failed"),
    ({"parent": NAMES[3]}, "rollout k:t:0, which cannot be continued from a token: it has text alone"),
    ({"parent": NAMES[2], "problem_id": "b"}, "rollout k:b:0, whose tokens are another tokenizer's"),
    ({"parent": NAMES[2]}, "rollout k:b:0, which answers another problem"),
    ({"recall": NAMES[0], "n": 2}, "of problem a, takes up a stored rollout again more than once"),
    ({"recall": NAMES[0], "parent": NAMES[0]}, "continues one rollout and takes up another again"),
    ({"inserted": "1"}, "sets one of branch_at, inserted, inherits, replaces without a parent"),
    ({"parent": NAMES[0], "inherits": "all"}, "inherits neither as context nor as trained"),
    (
        {"parent": NAMES[0], "temperature": 0.5, "inherits": "trained"},
        "was sampled with temperature 1, top_p 1, top_k 0",
    ),
    (
        {"parent": NAMES[0], "inserted": "1" * 56},
        "rollout k:a:0 up to its cut has 64 tokens .*: the policy's 64 have no room for another",
    ),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_what_cannot_be_continued_is_a_sentence_before_anything_is_sampled(changes: Row, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        planned(row("a", "g", max_tokens=4) | changes)


def test_a_server_of_text_alone_continues_nothing_and_takes_up_what_is_there() -> None:
    with pytest.raises(BadInputError, match="cannot be continued from a token") as error:
        planned(row("a", "g", parent=NAMES[0]), side=None)
    assert error.value.hint == "sample with an engine that returns tokens (server.tokens = true)"
    table = planned(row("a", "g", recall=NAMES[3]), side=None)
    (asked,) = table.asked(0, 1, "0" * 32)
    found = table.parents.taken_up([(asked.row, asked.request.rollout_id)], 0)
    assert found.column("completion").to_pylist() == ["text alone"]


@pytest.mark.parametrize(("inserted", "max_tokens", "most"), [("", 56, 56), ("", 57, 56), ("1" * 55, 20, 1)])
def test_a_continued_rollout_has_at_most_the_room_that_the_context_leaves(
    inserted: str, max_tokens: int, most: int
) -> None:
    table = planned(row("a", "g", parent=NAMES[0], inserted=inserted, max_tokens=max_tokens))
    (asked,) = table.asked(0, 1, "0" * 32)
    assert asked.request.max_tokens == most


def test_inserted_text_without_tokens_is_refused() -> None:
    letters = Tokenizer(BPE({chr(48 + i): i for i in range(30)}, []))  # what it does not know it drops
    side = PromptSide(PreTrainedTokenizerFast(tokenizer_object=letters), 64, (1,))
    with pytest.raises(
        BadInputError, match="the text inserted in rollout k:a:0 has no tokens: the tokenizer knows none"
    ):
        planned(row("a", "g", parent=NAMES[0], inserted="\u6f22", max_tokens=4), side=side)


def test_context_of_another_temperature_is_given_not_sampled() -> None:
    (asked,) = planned(row("a", "g", parent=NAMES[0], branch_at=2, temperature=0.5, max_tokens=4)).asked(0, 1, "0" * 32)
    assert asked.start is not None
    assert (asked.start.logprobs, asked.start.spans[0]["source"]) == ((None, None), "given")


@pytest.mark.slow
@given(
    st.integers(-6, 6),
    st.text("0123456789+=\n", max_size=8),
    st.sampled_from(["context", "trained"]),
    st.integers(0, 4),
)
def test_spans_cover_the_tokens_of_any_cut_and_text(cut: int, text: str, inherits: str, own: int) -> None:
    (asked,) = planned(
        row("a", "g", parent=NAMES[0], branch_at=cut, inserted=text, inherits=inherits, max_tokens=4)
    ).asked(0, 1, "0" * 32)
    start = asked.start
    assert start is not None
    kept = cut if cut >= 0 else 6 + cut
    assert asked.request.prompt_tokens == (9, 5, *start.tokens)
    assert (asked.prompt, len(start.tokens), len(start.logprobs)) == ((9, 5), kept + len(text), kept + len(text))
    assert [value is None for value in start.logprobs] == [False] * kept + [True] * len(text)
    spans = start.spans_of(own)
    number = np.concatenate([np.arange(each["start"], each["end"]) for each in spans] or [np.zeros(0)])
    assert number.tolist() == list(range(kept + len(text) + own))
    trained = sum(each["end"] - each["start"] for each in spans if each["trained"])
    assert trained == own + (kept if inherits == "trained" else 0)
    table = pa.table(
        {
            "completion_tokens": pa.array([list(range(kept + len(text) + own))], pa.list_(pa.int32())),
            "spans": pa.array([spans], ROLLOUTS.type_of("spans")),
        }
    )
    refuse_spans(table)
