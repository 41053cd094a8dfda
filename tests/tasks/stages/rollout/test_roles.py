"""Rows of a plan by role: each model samples its own, and rows may be trained for the problem's own prompt."""

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError
from gradus.models.policy import prompt_text, prompt_tokens
from gradus.models.tiny_tokenizer import tiny_tokenizer
from tests.tasks.stages.rollout.test_stage import PLAN, House

MESSAGES = [{"role": "user", "content": "1 2 + 3"}]
BY_ROLE = (
    PLAN.append_column("role", pa.array([None, "judge", None]))
    .append_column("use", pa.array([None, "judge", "probe"]))
    .append_column("about", pa.array([None, ["x:1", "x:2"], ["x:1"]]))
    .append_column("messages", pa.array([None, MESSAGES, MESSAGES]))
    .append_column("trained_prompt", pa.array([None, None, "problem"]))
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("roles"))


def test_a_role_samples_its_own_rows_which_say_what_they_are(house: House) -> None:
    own, judge = house.job(BY_ROLE), house.job(BY_ROLE)
    judge["facts"] |= {"role": "judge", "use": "judge", "origin": "judge"}
    probe = house.job(BY_ROLE)
    probe["facts"] |= {"use": "probe"}
    for job in (own, judge, probe):
        house.run(job)
    assert [(row["group_id"], row["role"], row["use"], row["about"], row["origin"]) for row in house.rows(judge)] == [
        ("b@r3h0", "judge", "judge", ["x:1", "x:2"], "judge")
    ] * 3
    rows, probes = house.rows(own), house.rows(probe)
    assert [(row["group_id"], row.get("use"), row["origin"]) for row in rows] == [("a@r3h0", None, None)] * 4
    assert [(row["group_id"], row["use"], row["origin"]) for row in probes] == [("a@r3h1", "probe", None)] * 4
    bare = prompt_tokens(tiny_tokenizer(), [prompt_text(tiny_tokenizer(), "1 + 2 =")])[0]
    assert [row["trained_prompt_tokens"] for row in probes] == [bare] * 4
    assert {row["trained_prompt_tokens"] for row in rows} == {None}
    assert probes[0]["prompt_tokens"] != bare
    plain = house.job()
    house.run(plain)
    first = [row["completion_tokens"] for row in house.rows(plain)[:4]]
    assert [row["completion_tokens"] for row in rows] == first  # other roles move no seed


def test_a_plan_of_other_roles_alone_is_refused_with_their_names(house: House) -> None:
    job = house.job(BY_ROLE.slice(1, 1))
    with pytest.raises(BadInputError, match=r"no row of the role policy and the use learn; it has judge \(judge\)"):
        house.run(job)
    job = house.job(BY_ROLE.slice(0, 1).drop_columns(["role", "use"]))
    job["facts"]["role"] = "judge"
    with pytest.raises(BadInputError, match=r"no row of the role judge and the use learn; it has policy \(learn\)"):
        house.run(job)


def test_a_prompt_to_be_trained_for_is_the_problems_own_or_none(house: House) -> None:
    odd = BY_ROLE.set_column(
        BY_ROLE.column_names.index("trained_prompt"), "trained_prompt", pa.array(["a", None, None])
    )
    with pytest.raises(BadInputError, match="trained_prompt = 'a' at problem a"):
        house.run(house.job(odd))
