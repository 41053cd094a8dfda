"""Pass rates of a policy by the difficulty tables of a lake written by hand, and the lengths of its completions."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.lake.store import Ref, Store
from gradus.tasks.artifacts.ahead import KnownRates, rates_in, rates_of, tokens_of
from tests.tasks.written_lake import WrittenHome

MINE, OTHER = Ref("checkpoints", "a" * 32), Ref("checkpoints", "b" * 32)
IDS = pa.array(["p", "q", "r"])


class House(WrittenHome):
    """A lake with rollouts of a policy at a temperature, and difficulty tables measured by them."""

    def sampled(self, digit: str, rows: list[dict[str, Any]], policy: Ref = MINE, temperature: float = 1.0) -> str:
        usual = {"problem_id": "p", "completion": "x", "hint_level": 0, "temperature": temperature}
        absent = dict.fromkeys(key for row in rows for key in row)
        table = [{"rollout_id": f"r{at}", **absent, **usual, **row} for at, row in enumerate(rows)]
        return self.artifact(f"rollouts/{digit * 32}", table, {"policy": [str(policy)]})

    def measured(self, digit: str, rollouts: str, counts: dict[str, tuple[int, int]], policy: Ref = MINE) -> Ref:
        table = pa.table(
            {
                "problem_id": list(counts),
                "n": [n for n, _ in counts.values()],
                "k": [k for _, k in counts.values()],
                "policies": [[OTHER.digest, policy.digest]] * len(counts),
            }
        )
        return Ref.parse(self.artifact(f"difficulty/{digit * 32}", table, {"rollouts": [rollouts]}))

    def rates(self, policy: Ref = MINE, temperature: float = 1.0) -> KnownRates:
        return rates_of(Store(self.root / "lake"), policy, temperature, IDS)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def counts(known: KnownRates) -> list[tuple[int, int]]:
    return list(zip(known.n.tolist(), known.k.tolist(), strict=True))


def test_the_largest_count_of_a_problem_is_taken_and_no_two_are_added(house: House) -> None:
    first = house.measured("1", house.sampled("1", [{}]), {"p": (8, 3), "q": (4, 4)})
    second = house.measured("2", house.sampled("2", [{}]), {"p": (4, 0), "q": (8, 6), "other": (9, 9)})
    house.measured("3", house.sampled("3", [{}]), {"q": (2, 2)})  # says nothing more
    known = house.rates()
    assert counts(known) == [(8, 3), (8, 6), (0, 0)]
    assert known.tables == (first, second)
    store = Store(house.root / "lake")
    assert counts(rates_in(store, second, IDS)) == [(4, 0), (8, 6), (0, 0)]


def test_another_policy_another_temperature_and_older_rows_do_not_count(house: House) -> None:
    house.measured("1", house.sampled("1", [{}], OTHER), {"p": (8, 1)}, OTHER)
    house.measured("2", house.sampled("2", [{}], temperature=0.0), {"p": (8, 2)})
    house.measured("3", house.sampled("3", [{}]), {"p": (8, 3)}, OTHER)  # of a problem not measured since
    house.artifact(f"difficulty/{'4' * 32}", pa.table({"problem_id": ["p"], "n": [8], "k": [4]}))  # a user's own
    house.measured("5", f"rollouts/{'9' * 32}", {"p": (8, 5)})  # whose rollouts were removed
    assert counts(house.rates()) == [(0, 0)] * 3
    assert counts(house.rates(OTHER)) == [(8, 1), (0, 0), (0, 0)]
    assert counts(house.rates(temperature=0.0)) == [(8, 2), (0, 0), (0, 0)]


def test_a_damaged_table_is_passed_over_and_a_plan_says_the_temperature(house: House) -> None:
    plan = house.artifact(f"plan/{'1' * 32}", [{"problem_id": "p", "n": 8, "temperature": 0.5}])
    rows = [{"rollout_id": "r", "problem_id": "p", "completion": "x", "temperature": 1.0}]
    parents = {"policy": [str(MINE)], "plan": [plan]}
    house.measured("1", house.artifact(f"rollouts/{'1' * 32}", rows, parents), {"p": (8, 3)})
    damaged = house.measured("2", house.sampled("2", [{}], temperature=0.5), {"p": (9, 9)})
    shard = Store(house.root / "lake").path(damaged) / "part-00000.parquet"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert counts(house.rates(temperature=0.5)) == [(8, 3), (0, 0), (0, 0)]
    assert counts(house.rates()) == [(0, 0)] * 3


def test_an_empty_lake_knows_nothing(house: House) -> None:
    known = house.rates()
    assert (counts(known), known.tables) == ([(0, 0)] * 3, ())


def test_lengths_are_of_bare_completions_of_its_own_with_tokens(house: House) -> None:
    rows = [
        {"completion_tokens": [1] * 10},
        {"completion_tokens": [1] * 20},
        {"completion_tokens": None},  # a text alone
        {"completion_tokens": [1] * 500, "hint_level": 2},
        {"completion_tokens": [1] * 500, "origin": "expert"},
        {"completion_tokens": [1] * 500, "messages": [{"role": "user", "content": "judge"}]},
    ]
    table = house.measured("1", house.sampled("1", rows), {"p": (8, 3)})
    texts = house.measured("2", house.sampled("2", [{"completion_tokens": None}]), {"p": (8, 3)})
    store = Store(house.root / "lake")
    assert tokens_of(store, [table]) == 15.0
    assert tokens_of(store, [texts]) is None
    assert tokens_of(store, []) is None
