"""A training that measures its problems again once its groups have no variance: what it measures, reads and learns."""

from collections import Counter
from collections.abc import Callable

from tests.e2e.conftest import RECIPE, Program
from tests.e2e.methods.made import Made

SETS = (
    *('waves=[{name="measure_again", limit=0.0, problems=20, n=2}]', 'update.shapes=["without_measured"]'),
    *("rounds=2", "curate.draw=8", "curate.sample.n=2", "escalate=[]", "evaluate.every=2"),
    'curate.filters=[{name="pass_rate", low=0.25, high=0.75, unmeasured="drop"}]',
    "profile.n=2",
)


def test_the_next_round_goes_by_the_new_pass_rates_and_nothing_is_learned_from_them(
    new_program: Callable[..., Program],
) -> None:
    program = new_program(warm=True)
    run = program.json("train", str(RECIPE), *[word for each in SETS for word in ("--set", each)])["run"]
    made = Made(program, run)
    again = [row for row in made.sampled(1) if row["wave"]]
    assert len(again) == 2 * len({row["problem_id"] for row in again}) == 40
    assert not {row["problem_id"] for row in again} & {row["problem_id"] for row in made.table("curate", 1)}
    assert all(row["taken"] is (not row["wave"]) for row in made.sampled(1))
    # Counted here: of each problem measured in round 1 by that policy, which is the profile's, right rows of all.
    asked, right = Counter[str](), Counter[str]()
    for row in [*made.table("score", 0, "profile"), *made.table("score", 1)]:
        asked[row["problem_id"]] += 1
        right[row["problem_id"]] += row["correct"]
    known = {row["problem_id"]: (row["n"], row["k"]) for row in made.given("curate", "difficulty", 2)}
    assert known == {name: (asked[name], right[name]) for name in asked}
    planned = [row["problem_id"] for row in made.table("curate", 2)]
    assert planned
    assert all(0.25 <= right[name] / asked[name] <= 0.75 for name in planned)
    assert {asked[name] for name in planned} == {2, 4}, "some were measured again"
