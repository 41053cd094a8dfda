"""Methods that reward by length, by turns and answers on the way, or by parts of the reward: one entry a method."""

import json
import re
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from tests.e2e.methods.made import Made, Row, rate, same
from tests.e2e.methods.objectives import Check, Objective, all_of
from tests.e2e.methods.shaping import in_rounds, standing, tokens
from tests.e2e.methods.step import Step


def has_7(row: Row) -> float:
    """The reward `format` as the runs have it."""
    return float("7" in row["completion"])


def extra(made: Made, row: Row) -> Row:
    return json.loads(made.problems[row["problem_id"]]["extra"] or "{}")


def rewards_of_rows(each: Callable[[Made, Row], float]) -> Check:
    """The reward of every row, which differs from that of the recipe in some."""

    def check(made: Made, round: int) -> None:
        rows = [row for group in made.standing(round) for row in group]
        found = [row["shaped"] for row in rows]
        same(found, [each(made, row) for row in rows])
        assert found != [row["reward"] for row in rows]

    return in_rounds(check)


# Parts of the reward


def trusted(group: list[Row]) -> list[float]:
    scale = 0.15 * (1 + float(np.cos(np.pi * (group[0]["round"] - 1) / 49)))
    right, wrong = ([has_7(row) for row in group if row["correct"] is each] for each in (True, False))
    trust = min(1.0, float(np.exp(np.mean(right) - np.mean(wrong)))) if right and wrong else 1.0
    return [row["reward"] + trust * scale * has_7(row) for row in group]


def only_right(group: list[Row]) -> list[float]:
    return [row["reward"] + (has_7(row) if row["correct"] else 0.0) for row in group]


def stretched(group: list[Row]) -> list[float]:
    """ARMed; of two values one is 0 and the other 1, in a group of both."""
    values = {has_7(row) for row in group}
    return [row["reward"] + (has_7(row) if len(values) > 1 else 0.0) for row in group]


def tamed(made: Made, round: int) -> None:
    """PaCo-RL: of two rewards the one that fluctuates more by its logarithm."""
    rows = [row for group in made.standing(round) for row in group]
    parts = np.array([[float(row["correct"]), has_7(row)] for row in rows])
    same([row["reward"] for row in rows], parts.sum(1).tolist())
    spread = [np.std(each) / np.mean(each) for each in parts.T]
    most = int(np.argmax(spread))
    parts[:, most] = np.log(1 + parts[:, most])
    same([row["shaped"] for row in rows], parts.sum(1).tolist())
    assert spread[0] != spread[1]


def weighed(made: Made, round: int) -> None:
    rows = made.learned(round)
    same([row["reward"] for row in rows], [row["correct"] + 0.2 * has_7(row) for row in rows])
    assert len({round_(row["reward"]) for row in rows}) > 2


def round_(value: float) -> float:
    return float(np.round(value, 6))


# Lengths


def as_long_as_asked(made: Made, row: Row) -> float:
    asked, length = extra(made, row)["length_target"] or {}, tokens(row)
    penalty = 0
    if "max" in asked and length > asked["max"]:
        penalty += length - asked["max"]
    if "min" in asked and length < asked["min"]:
        penalty += asked["min"] - length
    return row["reward"] - 0.01 * penalty


def at_most(made: Made, row: Row) -> float:
    asked = extra(made, row)["length_target"] or {}
    if "max" not in asked:
        return row["reward"]
    return row["reward"] * min(1.0, max(0.0, 0.02 * (asked["max"] - tokens(row)) + 0.5))


def format_then_length(group: list[Row]) -> list[float]:
    """Of a limit of 40 tokens and a turn at 20."""

    def term(length: int) -> float:
        return 1 - (1 - length / 20) ** 2 if length <= 20 else 1 - 2 * (length / 20 - 1) ** 2

    return [1 + term(tokens(row)) if has_7(row) else min(0.0, term(tokens(row))) for row in group]


def short_ones_gain(made: Made, round: int) -> None:
    """Fast-Math-R1, second phase: accuracy and format, and a half less the place between shortest and longest."""
    found, expected = list[float](), list[float]()
    for group in made.groups(round) if round == 2 else ():
        least, most = min(map(tokens, group)), max(map(tokens, group))
        for row in group:
            place = 0.5 - (tokens(row) - least) / (most - least) if most > least else 0.0
            found.append(row["shaped"])
            expected.append(row["correct"] + has_7(row) + (place if row["correct"] or place < 0 else 0.0))
    if round == 2:
        same(found, expected)
        assert len({row["correct"] for row in made.learned(2)}) == 2


BUDGETS = (8, 10, 20)


def worth(length: int, budget: int) -> float:
    """HBPO: the reward of a right answer, of a limit of 23 tokens, a scale of 2, and 0.03 for a token too many."""
    if length > 23:
        return 0.0
    far = max(length, budget)
    return 2 * float(np.cos(np.pi / 2 * far / 23)) - 0.03 * (far - budget)


def by_budget(made: Made, round: int) -> None:
    """HBPO: each problem is asked within every budget, and right answers are rewarded by that of their prompt."""
    known = {row["plan_id"]: row["budget"] for row in made.table("wave", round)}
    found, expected = list[float](), list[float]()
    for group in made.groups(round):
        budgets = [int(known[row["plan_id"]]) for row in group[1:]]
        assert sorted(budgets) == sorted(3 * BUDGETS)
        assert (group[0].get("plan_id") in known, group[0]["taken"]) == (False, False)
        for row, budget in zip(group[1:], budgets, strict=True):
            assert row["messages"][0]["content"].endswith(f"=\n{budget}")
            assert row["taken"]
            found.append(row["shaped"])
            expected.append(worth(tokens(row), budget) if row["correct"] else 0.0)
    same(found, expected)
    assert round > 1 or len({round_(each) for each in expected}) > 3


def within_and_across(s: Step) -> Tensor:
    """HBPO: the mean of a subgroup less the most that its budget allows, and GRPO over the group."""
    of_plan = {row["plan_id"]: row["budget"] for row in s.plans if "budget" in row}
    budget = np.array([of_plan[row["plan_id"]] for row in s.rollouts])
    reward, group = s.reward.numpy(), s.group.numpy()
    found = np.zeros(len(reward))
    for at in range(len(reward)):
        peers = reward[group == group[at]]
        alike = reward[(group == group[at]) & (budget == budget[at])]
        found[at] = alike.mean() - worth(0, int(budget[at]))
        if np.ptp(peers) > 0:
            found[at] += (reward[at] - peers.mean()) / (peers.std(ddof=1) + 1e-6)
    return torch.from_numpy(found)


def of_right(s: Step) -> Tensor:
    return s.correct[s.row] / s.correct[s.row].sum()


# Turns, and answers on the way


def few_turns(_made: Made, row: Row) -> float:
    turns = max(1, row["completion"].count("="))
    return row["reward"] + (0.5 / turns if row["correct"] else 0.0)


def on_the_way(made: Made, round: int) -> None:
    """Interleaved reasoning: answers are the numbers behind `=` and `####`, a valid form has five lines at most."""
    rows = made.learned(round)
    rising = round == 1 or rate(rows) > rate(made.learned(round - 1)) - 0.05
    found, expected, credit = list[float](), list[float](), list[float]()
    for row in rows:
        *said, _last = re.findall(r"(?:=|####)\s*(-?\d+)", row["completion"]) or [""]
        gold = extra(made, row)["sub_answers"]
        first = [said.index(each) + 1 for each in gold if each in said]
        share = 1.0 if len(first) == len(gold) else sum(1 / place for place in first) / len(gold)
        counts = bool(row["correct"]) and rising and row["completion"].count("\n") <= 4
        credit.append(share if counts else 0.0)
        found.append(row["shaped"])
        expected.append(row["reward"] + 0.5 * credit[-1])
    same(found, expected)
    assert any(credit) == rising


LENGTH_METHODS: Mapping[str, Check] = {
    "armed": standing(stretched),
    "fast_math_r1": all_of(Objective(lambda s, _a: -s.now, mean=of_right, update=0), in_rounds(short_ones_gain)),
    "format_length": standing(format_then_length),
    "hbpo": all_of(in_rounds(by_budget), Objective(advantage=within_and_across)),
    "interleaved": in_rounds(on_the_way),
    "l1_max": rewards_of_rows(at_most),
    "length_targets": rewards_of_rows(as_long_as_asked),
    "mind": rewards_of_rows(few_turns),
    "multi_objective": all_of(in_rounds(weighed), Objective(is_grpo=True)),
    "p_grpo": standing(only_right),
    "paco": in_rounds(tamed),
    "trust_grpo": standing(trusted),
}
