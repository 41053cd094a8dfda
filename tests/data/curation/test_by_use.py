"""Rows of a round as a role that is trained sees them."""

import pyarrow as pa

from gradus.data.curation.by_use import of_use, other_uses, seen_by

ROUND = pa.table(
    {
        "rollout_id": list("abcde"),
        "role": [None, "judge", "judge", "critic", "policy"],
        "use": [None, "judge", "learn", "critique", "judge"],
        "origin": [None, "judge", "judge", "critic", None],
    }
)


def test_what_a_role_sampled_is_its_own_and_the_policys_rows_stand_beside() -> None:
    seen = seen_by(ROUND, "judge")
    assert seen.column("rollout_id").to_pylist() == list("abcde")
    assert of_use(seen, "learn").column("rollout_id").to_pylist() == ["b", "c"]
    assert of_use(seen, "learn").column("origin").to_pylist() == ["own", "own"]
    assert of_use(seen, "policy").column("rollout_id").to_pylist() == ["a"]
    assert other_uses(seen).column("use").to_pylist() == ["policy", "critique", "judge"]
    assert seen.column("origin").to_pylist()[3] == "critic"


def test_the_policy_sees_rows_as_they_are() -> None:
    assert seen_by(ROUND, "") is ROUND


def test_rows_of_a_table_without_roles_are_the_policys() -> None:
    plain = pa.table({"rollout_id": ["a"]})
    assert of_use(seen_by(plain, "judge"), "learn").num_rows == 0
