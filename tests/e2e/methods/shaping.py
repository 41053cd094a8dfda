"""Methods that reward, leave out or mark rows before an update: one entry a method."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import combinations

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from tests.e2e.conftest import Program
from tests.e2e.methods import formulas as f
from tests.e2e.methods import objectives as o
from tests.e2e.methods.given import each_origin, luffy, own_clip
from tests.e2e.methods.made import Made, Row, answer, by, failed, own, rate, same
from tests.e2e.methods.objectives import Check, Objective, Plus, all_of, by_reward
from tests.e2e.methods.step import Step

ROUNDS = (1, 2)


def in_rounds(each: Callable[[Made, int], None]) -> Check:
    """A check of every round."""

    def check(program: Program, run: str) -> None:
        made = Made(program, run)
        for round in ROUNDS:
            each(made, round)

    return check


def rewards(each: Callable[[list[Row]], list[float]]) -> Check:
    """The reward of each row of a group in the batch, by the group."""

    def check(made: Made, round: int) -> None:
        groups = made.groups(round)
        same([row["shaped"] for group in groups for row in group], [x for group in groups for x in each(group)])

    return in_rounds(check)


def standing(each: Callable[[list[Row]], list[float]]) -> Check:
    """The same of groups in whose place no hinted one is learned from."""

    def check(made: Made, round: int) -> None:
        groups = made.standing(round)
        same([row["shaped"] for group in groups for row in group], [x for group in groups for x in each(group)])

    return in_rounds(check)


def takes(each: Callable[[list[Row]], list[bool]]) -> Check:
    """The rows of a group that the batch takes, by the group; some are left out."""

    def check(program: Program, run: str) -> None:
        made = Made(program, run)
        groups = [group for round in ROUNDS for group in made.standing(round)]
        found = [row["taken"] for group in groups for row in group]
        assert found == [x for group in groups for x in each(group)]
        assert not all(found)

    return check


# Without gold answers


def shares(group: list[Row]) -> list[float]:
    said = Counter(answer(row) for row in group if row["extracted"] is not None)
    return [said[answer(row)] / len(group) for row in group]


def neither_sure_nor_lost(group: list[Row]) -> list[bool]:
    said = Counter(answer(row) if row["extracted"] is not None else f"none {at}" for at, row in enumerate(group))
    p = np.array(list(said.values())) / len(group)
    return [bool(0 < -(p * np.log(p)).sum() < 1.6)] * len(group)


def majority_and_novelty(group: list[Row]) -> list[float]:
    words = [Counter(re.findall(r"\w+", row["completion"].lower())) for row in group]

    def alike(i: int, j: int) -> float:
        norms = [np.sqrt(sum(n * n for n in words[at].values())) for at in (i, j)]
        return sum(n * words[j][word] for word, n in words[i].items()) / max(1e-12, norms[0] * norms[1])

    said = Counter(answer(row) for row in group if row["extracted"] is not None)
    won = [bool(said) and answer(row) == said.most_common(1)[0][0] for row in group]
    novel = list[float]()
    for i in range(len(group)):
        others = [j for j in range(len(group)) if j != i]
        beside = [alike(i, j) for j in others if won[j] == won[i]]
        novel.append(1 - ((np.mean(beside) if beside else 0) + max((alike(i, j) for j in others), default=0)) / 2)
    found = list[float]()
    for i, row in enumerate(group):
        side = [novel[j] for j in range(len(group)) if won[j] == won[i]]
        u = (novel[i] - min(side)) / (max(side) - min(side)) if max(side) - min(side) > 1e-9 else 0.5
        found.append(-1.0 if row["extracted"] is None else (0.5 if won[i] else -1.0) + u / 2)
    return found


def short_answers(made: Made, round: int) -> None:
    """GRPO-lambda: right rows of the fifth of the groups that are solved most lose reward by their length."""
    groups = made.standing(round)
    least = sorted(map(rate, groups), reverse=True)[: max(1, int(np.rint(0.2 * len(groups))))][-1]
    found, expected = list[float](), list[float]()
    for group in groups:
        length = np.array([len(row["completion_tokens"]) for row in group if row["correct"]])
        for row in group:
            scale = 0.0
            if row["correct"] and rate(group) >= least:
                std = length.std(ddof=1) if len(length) > 1 else 0.0
                scale = float(expit((len(row["completion_tokens"]) - length.mean()) / std)) if std > 0 else 0.5
            found.append(row["shaped"])
            expected.append(row["reward"] * (1 - 0.5 * scale))
    same(found, expected)
    assert found != [row["reward"] for group in groups for row in group]


def tokens(row: Row) -> int:
    return len(row["completion_tokens"])


def corrected(right: float, wrong: float) -> Callable[[list[Row]], list[float]]:
    """Each verdict has one of two values."""
    return lambda group: [right if row["correct"] else wrong for row in group]


def by_cosine(group: list[Row]) -> list[float]:
    def value(row: Row) -> float:
        short, long = (2.0, 1.0) if row["correct"] else (-10.0, 0.0)
        return long + (short - long) * (1 + float(np.cos(np.pi * tokens(row) / 16384))) / 2

    return [value(row) for row in group]


def near_a_budget(group: list[Row]) -> list[float]:
    budget = 256 - (256 - 87) * (group[0]["round"] - 1) / 49
    return [row["reward"] + 0.5 * max(0.0, 1 - abs(tokens(row) - budget) / budget) for row in group]


def overlong(group: list[Row]) -> list[float]:
    """Nothing is lost up to 10 tokens, 1 from 30 on, as the settings of the check have it."""
    penalties = [min(max(tokens(row) - 10, 0) / 20, 1.0) for row in group]
    assert any(penalties)
    return [row["reward"] - penalty for row, penalty in zip(group, penalties, strict=True)]


def rare_formats(group: list[Row]) -> list[float]:
    """Ada-GRPO's a_i(t), formats being two lines or more, or one."""
    progress = (group[0]["round"] - 1) / 49
    several = [row["completion"].count("\n") >= 2 for row in group]
    found = list[float]()
    for row, mine in zip(group, several, strict=True):
        share = several.count(mine) / len(group)
        decay = share + 0.5 * (1 - share) * (1 + float(np.cos(np.pi * progress)))
        found.append(row["reward"] * decay / share)
    return found


# A part of each group


def most_varied(frac: Callable[[int], float]) -> Callable[[list[Row]], list[bool]]:
    """A share of the rows, by round, of the largest variance: compared with every choice of rows if they are few."""

    def each(group: list[Row]) -> list[bool]:
        num = int(np.ceil(frac(group[0]["round"]) * len(group)))
        taken = [row["taken"] for row in group]
        reward = np.array([row["reward"] for row in group])
        assert sum(taken) == num
        if len(group) <= 8:
            best = max(float(np.var(choice)) for choice in combinations(reward, num))
        else:  # of zeros and ones: as even as can be
            ones = min(int(reward.sum()), max(num // 2, num - int((reward == 0).sum())))
            best = ones / num * (1 - ones / num)
        assert np.isclose(np.var(reward[taken]), best)
        return taken

    return each


def no_surplus(group: list[Row]) -> list[bool]:
    """RED-Drop: no more rows below the mean than above, and no other left out."""
    mean = np.mean([row["reward"] for row in group])
    below = [row for row in group if row["reward"] < mean]
    room = len(group) - len(below) if below else 0
    assert sum(row["taken"] for row in below) == min(len(below), room)
    assert all(row["taken"] for row in group if row not in below)
    return [row["taken"] for row in group]


def in_band(group: list[Row]) -> list[bool]:
    return [0.25 <= rate(group) <= 0.75] * len(group)


def understood_in_place_of_wrong(group: list[Row]) -> list[bool]:
    """AMPO: the given row and all but the last own ones of a group that failed; own rows alone elsewhere."""
    mine, theirs = [row for row in group if own(row)], [row for row in group if not own(row)]
    if any(row["correct"] for row in mine) or not theirs:
        return [own(row) for row in group]
    assert all(row["shaped"] >= 1 for row in theirs)
    left = {row["rollout_id"] for row in mine[-len(theirs) :]}
    return [row["rollout_id"] not in left for row in group]


def exemplified(group: list[Row]) -> list[bool]:
    """ICPO: rollouts behind examples if they are right."""
    assert sum(row["origin"] == "exemplified" for row in group) <= 1
    return [own(row) or bool(row["correct"]) for row in group]


def bonus(made: Made, round: int) -> None:
    """ICPO: a bonus that falls from 0.1 to 0 in 50 rounds, to right rollouts behind examples."""
    rows = [row for row in made.learned(round) if row["taken"]]
    assert any(not own(row) for row in made.learned(round))
    more = 0.1 * (1 - (round - 1) / 49)
    same([row["shaped"] for row in rows], [row["reward"] + (0 if own(row) else more) for row in rows])


def greedy_first(made: Made, round: int) -> None:
    """SELF: greedy probes are not learned from; the problems that they miss alone are sampled."""
    probes = [row for row in made.learned(round) if row["temperature"] == 0]
    others = [row for row in made.learned(round) if row["temperature"] > 0]
    assert len(probes) == 32
    assert {row["problem_id"] for row in others} == {row["problem_id"] for row in probes if not row["correct"]}
    assert all(len(group) == 8 for group in by(others, "group_id"))
    assert {row["taken"] for row in probes} == {False}


def bundled(made: Made, round: int) -> None:
    """RiskPO: the rows of one number of up to five groups have the sum of their rewards."""
    papers = by(made.learned(round), "in_group", "sample")
    found, expected = list[float](), list[float]()
    for paper in papers:
        assert len(paper) <= 5
        found += [row["shaped"] for row in paper]
        expected += [sum(row["reward"] for row in paper)] * len(paper)
    same(found, expected)
    assert max(map(len, papers)) == 5


def range_value_at_risk(r: np.ndarray) -> np.ndarray:
    """RiskPO: the place between the quantiles 0.1 and 0.9, with weight 1.5 on the lower tail."""
    low, high = (np.sort(r)[int(np.ceil(q * len(r) - 1e-9)) - 1] for q in (0.1, 0.9))
    inside = (np.clip(r, low, None) - low - (np.clip(r, high, None) - high) - (high - low)) / 0.8
    return (1.5 * -np.clip(low - r, 0, None) / 0.1 + inside) / 2.5


def over_tracked_value(s: Step) -> Tensor:
    """SPO, second round: reward less the value by counts of the profile and the first round, over all rows."""
    made, known = Made(s.program, s.run), dict[str, float]()
    profile = {group[0]["problem_id"]: rate(group) for group in by(made.table("score", 0, "profile"), "problem_id")}
    for row in made.learned(1):
        known[row["problem_id"]] = (8 * profile.get(row["problem_id"], 0.5) + row["reward"]) / 9
    assert all(len(group) == 1 for group in made.groups(1))
    over = s.reward - torch.tensor([known.get(row["problem_id"], 0.5) for row in s.table], dtype=torch.float64)
    return (over - over.mean()) / over.std(correction=0)


def rehearsed(s: Step) -> Tensor:
    return torch.tensor([float(row.get("recall") is not None) for row in s.rollouts])


def part(at: Callable[[Step], Tensor]) -> f.AtStep:
    return lambda s: at(s)[s.row] / at(s)[s.row].sum()


def solved_before(made: Made, round: int) -> None:
    """DPH-RL: problems that were always solved are not explored, but their answers of round 1 rehearsed."""
    assert all((row["pass_rate"] or 0) <= 0.99 for row in made.planned(round))
    known = {row["problem_id"]: row["pass_rate"] for row in made.given("curate", "difficulty", 1)}
    first = [row for row in made.learned(1) if row["wave"]]
    assert first
    assert {known[row["problem_id"]] for row in first} == {1.0}
    if round == 2:
        again = [row for row in made.learned(2) if row["recall"]]
        right = {row["rollout_id"] for group in made.groups(1) if rate(group) == 1 for row in group}
        assert again
        assert {row["recall"] for row in again} <= right


def drift(s: Step, _a: Tensor) -> Tensor:
    u = (s.now - s.sampler).exp()
    return u - u.log() - 1


def guided_is_right(made: Made, round: int) -> None:
    """Scaf-GRPO, from round 2: of the hinted rollouts the first right one, in the group that failed."""
    rows = made.learned(round)
    hinted = [row for row in rows if row["hint_level"]]
    assert bool(hinted) == (round == 2)
    for problem in by(rows, "problem_id"):
        helped = [row for row in problem if row["hint_level"]]
        if helped:
            assert failed([row for row in problem if not row["hint_level"]])
            best = [row for row in helped if row["correct"]][:1]
            assert [row["rollout_id"] for row in helped if row["taken"]] == [row["rollout_id"] for row in best]
            assert all(row["in_group"] == problem[0]["group_id"] for row in best)
            assert sum(not row["taken"] for row in problem if not row["hint_level"]) == len(best)


SHAPING_METHODS: Mapping[str, Check] = {
    "ada_grpo": standing(rare_formats),
    "ampo": all_of(takes(understood_in_place_of_wrong), Objective(each_origin(own_clip, luffy))),
    "cosine_length": standing(by_cosine),
    "d3s": all_of(
        takes(most_varied(lambda round: 0.25 + 0.75 * (round - 1) / 49)),
        Objective(weight=lambda s, a: o.top(a.abs() * s.entropy.detach(), 0.2 + 0.8 * (s.round - 1) / 49)),
    ),
    "dapo_overlong": standing(overlong),
    "dph_rl": all_of(
        in_rounds(solved_before),
        Objective(mean=part(lambda s: 1 - rehearsed(s)), plus=(Plus(drift, 0.01, mean=part(rehearsed)),)),
    ),
    "empo": all_of(takes(neither_sure_nor_lost), rewards(shares)),
    "evol_rl": rewards(majority_and_novelty),
    "grpo_lambda": in_rounds(short_answers),
    "icpo": all_of(takes(exemplified), in_rounds(bonus)),
    "noisy_backward": standing(corrected(0.9 / 0.7, -0.1 / 0.7)),
    "noisy_forward": all_of(standing(corrected(0.2, -0.8)), Objective(advantage=f.own_reward)),
    "pods": takes(most_varied(lambda _round: 0.25)),
    "red_drop": all_of(takes(no_surplus), by_reward(f.dr_grpo)),
    "riskpo": all_of(in_rounds(bundled), Objective(advantage=f.by_group(range_value_at_risk))),
    "scaf_grpo": in_rounds(guided_is_right),
    "self": in_rounds(greedy_first),
    "spo": Objective(advantage=over_tracked_value),
    "train_long_think_short": standing(near_a_budget),
}
