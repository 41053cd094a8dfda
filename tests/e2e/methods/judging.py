"""Methods in which others say something of an answer: judges, critiques, continuations: one entry a method."""

from collections.abc import Callable, Mapping
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from tests.e2e.methods import formulas as f
from tests.e2e.methods.given import each_origin, luffy, own_clip
from tests.e2e.methods.made import Made, Row, answer, rate, same
from tests.e2e.methods.objectives import Check, Objective, all_of
from tests.e2e.methods.shaping import in_rounds
from tests.e2e.methods.step import Step
from tests.e2e.methods.waves import replayed


def judged(use: str, made: Made, round: int) -> dict[str, list[Row]]:
    """What was said of each row that the policy learns from."""
    found = {row["rollout_id"]: list[Row]() for row in made.learned(round)}
    for row in made.about(round, use):
        for each in row["about"]:
            found.get(each, []).append(row)
    return found


def reward_of(each: Callable[[Row, list[float]], float], use: str = "judge") -> Check:
    """The reward of each row by what a judge said of it."""

    def check(made: Made, round: int) -> None:
        said = judged(use, made, round)
        rows = [row for row in made.learned(round) if said[row["rollout_id"]] and not row["recall"]]
        known = [[s["reward"] for s in said[row["rollout_id"]] if s["reward"] is not None] for row in rows]
        same(
            [row["shaped"] for row, values in zip(rows, known, strict=True) if values],
            [each(row, values) for row, values in zip(rows, known, strict=True) if values],
        )

    return in_rounds(check)


def wins(made: Made, round: int) -> None:
    """Pref-GRPO under a judge that prefers the shorter answer: the share of the others that is longer."""
    found, expected = list[float](), list[float]()
    for group in made.groups(round):
        size = [len(row["completion"]) for row in group]
        pairs = [row for row in made.about(round, "judge") if row["about"][0] in {r["rollout_id"] for r in group}]
        assert len(pairs) == len(list(combinations(group, 2)))
        for i, row in enumerate(group):
            shorter = [j for j in range(len(group)) if j != i and size[i] < size[j]]
            equal = [pair for pair in pairs if {row["rollout_id"]} < {*pair["about"]} and tie(pair, group)]
            first = sum(pair["about"][0] == row["rollout_id"] for pair in equal)
            found.append(row["shaped"])
            expected.append((len(shorter) + first) / (len(group) - 1))
    same(found, expected)


def tie(pair: Row, group: list[Row]) -> bool:
    return len({len(row["completion"]) for row in group if row["rollout_id"] in pair["about"]}) == 1


def as_referred(made: Made, round: int) -> None:
    """CaT: each row is rewarded for the answer of the reference that was written from all answers of its group."""
    groups, references = made.groups(round), made.about(round, "reference")
    assert sorted(sorted(row["about"]) for row in references) == sorted(
        sorted(row["rollout_id"] for row in group) for group in groups
    )
    said = {name: answer(row) for row in references for name in row["about"]}
    known = [row for group in groups for row in group if said[row["rollout_id"]] is not None]
    same([row["shaped"] for row in known], [float(answer(row) == said[row["rollout_id"]]) for row in known])
    assert {row["shaped"] for row in known} == {0.0, 1.0}
    assert all(row["shaped"] is None for group in groups for row in group if said[row["rollout_id"]] is None)


def role_update(made: Made, round: int, role: str) -> list[Row]:
    """The rows of the batch that a role learns from, joined with what they are."""
    known = {row["rollout_id"]: row for row in made.sampled(round)}
    shaped = made.table("shape", round, role)
    return [
        {**known[row["rollout_id"]], "shaped": row["reward"]}
        for row in shaped
        if known[row["rollout_id"]]["role"] == role
    ]


def verifier_agrees(role: str) -> Check:
    """Tango, Libra-RM: the verifier is rewarded for verdicts that the outcome confirms."""

    def check(made: Made, round: int) -> None:
        right = {row["rollout_id"]: float(row["correct"]) for row in made.learned(round)}
        rows = role_update(made, round, role)
        same([row["shaped"] for row in rows], [float(row["reward"] == right[row["about"][0]]) for row in rows])

    return in_rounds(check)


def judge_of_chunks(made: Made, round: int) -> None:
    """StepWiser: the judge is rewarded for saying good where a chunk keeps 0.8 of the value before it."""
    plans = {row["group_id"]: row for row in made.plan(round) if row.get("use") == "judge"}
    rows = role_update(made, round, "judge")
    good = [plans[row["group_id"]] for row in rows]
    same(
        [row["shaped"] for row in rows],
        [float(row["reward"] == (p["value"] / (p["before"] + 1e-3) > 0.8)) for row, p in zip(rows, good, strict=True)],
    )


def wrong_answer_refined(made: Made, round: int) -> None:
    """Critique-GRPO: the first wrong answer of each group is criticised, and written anew in that group."""
    first = {
        next(row["rollout_id"] for row in group if not row["correct"]) for group in made.first(round) if rate(group) < 1
    }
    critiques = made.about(round, "critique")
    assert {row["about"][0] for row in critiques} == first
    refined = [row for row in made.learned(round) if row["origin"] == "refined"]
    said = [row for row in critiques if row["completion"]]
    assert len(refined) == len(said) > 0
    assert all(row["trained_prompt_tokens"] != row["prompt_tokens"] for row in refined)


def credited(s: Step) -> Tensor:
    """SPO-chain: the change of the mean reward of continuations across each segment."""
    values = {row["rollout_id"]: dict[int, list[float]]() for row in s.rollouts}
    inherited = {row["group_id"]: row["branch_at"] for row in s.plans if row.get("use") == "value"}
    for row in s.all_rows("rollouts", "scores"):
        if row.get("use") == "value" and row["about"][0] in values:
            values[row["about"][0]].setdefault(inherited[row["group_id"]], []).append(row["reward"])
    mean, found = s.by_group(np.mean), list[float]()
    for at, row in enumerate(s.rollouts):
        cuts = sorted(values[row["rollout_id"]].items())
        levels = [float(mean[at]), *(float(np.mean(each)) for _, each in cuts), float(s.reward[at])]
        places = [0, *(place for place, _ in cuts), int(s.length[at])]
        for number, gain in enumerate(np.diff(levels)):
            found += [float(gain)] * (places[number + 1] - places[number])
    return torch.tensor(found, dtype=torch.float64)


def probable_left_out(s: Step, _a: Tensor) -> Tensor:
    kept = (s.sampler.exp() < 0.9).double()
    return kept / kept.mean()


def wrong_steps(s: Step) -> Tensor:
    """CAPO: 2 r - 1 in steps that most critiques call wrong, over the tokens of a group."""
    marked = torch.zeros(len(s.row), dtype=torch.float64)
    first = s.length.cumsum(0) - s.length
    for at, row in enumerate(s.batch):
        for mark in row["marks"] or ():
            marked[int(first[at]) + mark["start"] : int(first[at]) + mark["end"]] = 1
    assert marked.any()
    reward, found = 2 * s.reward[s.row] - marked, torch.zeros_like(marked)
    for group in s.group.unique():
        tokens = s.group[s.row] == group
        if float(reward[tokens].max() - reward[tokens].min()) > 0:
            found[tokens] = (reward[tokens] - reward[tokens].mean()) / (reward[tokens].std() + 1e-4)
    return found


def voted(made: Made, round: int) -> None:
    """CAPO: a step is marked if more than half of the critiques of its answer name it."""
    plans = {row["group_id"]: row for row in made.plan(round) if row.get("use") == "critique"}
    marks = {row["rollout_id"]: row["marks"] or [] for row in made.table("shape", round)}
    seen = 0
    for name, rows in judged("critique", made, round).items():
        votes = [{int(mark["value"]) for mark in row["marks"] or ()} for row in rows if row["reward"] is not None]
        steps = {step for each in votes for step in each}
        if not rows:
            continue
        plan = plans[rows[0]["group_id"]]
        expected = {
            (plan["starts"][step - 1], plan["ends"][step - 1])
            for step in steps
            if 1 <= step <= len(plan["starts"]) and sum(step in each for each in votes) > len(votes) / 2
        }
        assert {(mark["start"], mark["end"]) for mark in marks[name]} == expected
        seen += len(expected)
    assert seen


JUDGING_METHODS: Mapping[str, Check] = {
    "cat_rl": in_rounds(as_referred),
    "capo": all_of(in_rounds(voted), Objective(own_clip, wrong_steps)),
    "critique_grpo": all_of(in_rounds(wrong_answer_refined), Objective(each_origin(own_clip, luffy), f.dr_grpo)),
    "mpo": reward_of(lambda _row, said: float(np.mean(said))),
    "pref_grpo": in_rounds(wins),
    "rgr_grpo": reward_of(lambda _row, said: float(np.mean(said))),
    "skywork_r1v2": all_of(
        reward_of(lambda row, said: row["reward"] + 0.5 * float(np.mean(said))), in_rounds(replayed)
    ),
    "spo_chain": Objective(own_clip, credited, weight=probable_left_out),
    "stepwiser": in_rounds(judge_of_chunks),
    "tango": all_of(
        verifier_agrees("verifier"), reward_of(lambda row, said: row["reward"] + 0.5 * float(np.mean(said)))
    ),
}
