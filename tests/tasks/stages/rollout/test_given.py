"""Rows of a plan that are given a text, by the bundled policy and against tokens by hand."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError
from gradus.data.lake.schema import PLAN, PROBLEMS, cast_to_schema
from gradus.data.lake.store import Ref, Store
from gradus.models.policy import PromptSide, load_policy
from gradus.models.templates import PromptConfig
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.tasks.stages.rollout.rows import given_texts
from tests.tasks.stages.rollout.test_continued import House, row


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("house"))


def given(problem: str, name: str, text: str, **more: Any) -> dict[str, Any]:
    return row(problem, name, given=text, origin="expert", **more)


def test_a_given_text_is_a_rollout_that_nobody_sampled_beside_those_that_are(house: House) -> None:
    given_columns = dict.fromkeys(("plan_id", "hint_text", "given", "origin", "source"))
    plan = [
        row("a", "a@r1h0", n=2, **given_columns),
        given("a", "a@r1h0", "12+7=19\n19+5=24\n#### 24", plan_id="a@r1h0.1", source="book"),
        given("b", "b@r1h0", "30+4=34", plan_id="b@r1h0.1", hint_text="3", hint_level=1),
    ]
    ref = house.run(plan)
    first, second, third, fourth = house.store.read(ref).to_pylist()
    assert [each["origin"] for each in (first, second, third, fourth)] == [None, None, "expert", "expert"]
    assert (third["rollout_id"], third["group_id"]) == (f"{ref.digest[:16]}:a@r1h0.1:0", "a@r1h0")
    assert third["completion"] == "12+7=19\n19+5=24\n#### 24"
    assert (third["source"], fourth["source"]) == ("book", None)
    loaded = load_policy(house.store.path(house.policy))
    assert third["prompt_tokens"] == first["prompt_tokens"]  # that of the problem
    assert third["completion_tokens"][-1] == loaded.end_tokens[0]
    assert loaded.tokenizer.decode(third["completion_tokens"][:-1]) == third["completion"]
    unknown = ("logprobs", "policy", "engine", "temperature", "seed")
    assert {(third[name], fourth[name]) for name in unknown} == {(None, None)}
    assert fourth["prompt_tokens"] != house.rows[next(name for name in house.rows if ":b@" in name)]["prompt_tokens"]
    assert house.generated == len(first["completion_tokens"]) + len(second["completion_tokens"])


def test_a_text_is_left_out_only_if_it_does_not_fit_with_its_end() -> None:
    # The prompt has 12 characters and a leading token; of 64 places the rest is text, and one place its end.
    side = PromptSide(tiny_tokenizer(), 64, (1,))
    problems = cast_to_schema(pa.table({"problem_id": ["a"], "question": ["12 + 7 + 5 ="]}), PROBLEMS)
    bare = given_texts(_plan([given("a", "a", "1", plan_id="0")]), problems, side, PromptConfig())
    room = 64 - len(bare.texts["0"].prompt)
    texts = ["1" * (room - 1), "1" * room, "2"]
    plan = _plan([given("a", "a", text, plan_id=str(at)) for at, text in enumerate(texts)] + [row("a", "a")])
    found = given_texts(plan, problems, side, PromptConfig())
    assert {name: len(each.completion) for name, each in found.texts.items()} == {"0": room, "2": 2}
    assert found.plan.column("plan_id").to_pylist() == ["0", "2", None]
    assert found.counts == {
        "given_tokens": room + 2,
        "refused": {"longer than the policy's context": 1},
        "examples": ["problem a: longer than the policy's context"],
    }
    with pytest.raises(BadInputError, match="the engine has no tokens of the policy"):
        given_texts(plan, problems, None, PromptConfig())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"origin": None}, "is given a text of the origin own"),
        ({"n": 2}, "is given a text more than once"),
        ({"recall": "a:0"}, "is given a text and builds on a rollout"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(house: House, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        house.run([given("a", "a@r1h0", "1") | changes])


def test_the_update_of_a_plan_without_given_texts_keeps_its_columns(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ref = store.put("plan", _plan([row("a", "a")]))
    assert {"given", "source"}.isdisjoint(store.columns(Ref("plan", ref.digest)))


def _plan(rows: list[dict[str, Any]]) -> pa.Table:
    return cast_to_schema(pa.Table.from_pylist(rows), PLAN)
