"""Methods that learn from a teacher, from given texts, or from marks of tokens: one entry a method."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from scipy.stats import fisher_exact
from torch import Tensor
from transformers import AutoTokenizer

from tests.e2e.conftest import Program
from tests.e2e.methods import formulas as f
from tests.e2e.methods.inputs import BUNDLED
from tests.e2e.methods.made import Made
from tests.e2e.methods.objectives import Check, Objective, Plus, Whole, all_of, log_sigmoid
from tests.e2e.methods.step import Step

TEACHER = "teacher"
"""A policy beside the lake of the program, unlike the bundled one."""
ORIGIN = "expert"


def teacher_all(s: Step) -> Tensor:
    """(M, V): log-probs of the teacher."""
    return s.all_of(s.lake.parent / TEACHER)


def teacher(s: Step) -> Tensor:
    return s.taken(teacher_all(s))


def likeliest(s: Step, k: int = 4) -> tuple[Tensor, Tensor]:
    """(M, k): log-probs of the teacher's most likely tokens under it and under the policy."""
    known, at = teacher_all(s).topk(k)
    return known, s.now_all.gather(1, at)


def gkd(s: Step, _a: Tensor) -> Tensor:
    """KL(teacher || policy) with all other tokens as one."""
    rest = [
        torch.cat([each, (1 - each.exp().sum(-1, keepdim=True)).clamp(min=1e-6).log()], -1) for each in likeliest(s)
    ]
    return (rest[0].exp() * (rest[0] - rest[1])).sum(-1)


def star(s: Step, _a: Tensor) -> Tensor:
    known, own = likeliest(s)
    return (known.exp() * (known - own)).sum(-1) + 10 * (1 - own.exp().sum(-1)).clamp(min=0)


def problems(s: Step) -> list[dict[str, Any]]:
    """The problem of each row."""
    made = [e["output"] for e in s.events if e["stage"] == "ingest"]
    found = {row["problem_id"]: row for each in made for row in s.program.rows(each)}
    return [found[row["problem_id"]] for row in s.rollouts]


def peers(s: Step) -> list[str | None]:
    """The first right completion of the group of each row that is not its own."""
    found = list[str | None]()
    for row in range(len(s.group)):
        others = [i for i in range(len(s.group)) if s.group[i] == s.group[row] and s.correct[i] == 1 and i != row]
        found.append(s.rollouts[others[0]]["completion"] if others else None)
    return found


def strongest_hints(s: Step) -> dict[str, str]:
    """The text of the highest level of each problem."""
    rows = sorted(Made(s.program, s.run).table("hint"), key=lambda row: row["level"])
    return {row["problem_id"]: row["text"] for row in rows}


def said_of(s: Step) -> dict[str, str]:
    """The critique of each row that has one."""
    rows = Made(s.program, s.run).about(s.round, "critique")
    return {row["about"][0]: row["completion"] for row in rows if row["completion"]}


def of_domain(s: Step) -> Tensor:
    """(M,): log-prob under the teacher of the problem's domain: the expert of short sums, or that of all others."""
    short = torch.tensor([problem["domain"] in ("chain_sum/2", "chain_sum/3") for problem in problems(s)])
    assert short.any()
    assert not short.all()
    return torch.where(short[s.row], s.taken(s.all_of(BUNDLED)), teacher(s))


def with_text(says: Callable[[Made, int], set[str]]) -> Check:
    """The rows of each round that have log-probs behind a longer prompt."""

    def check(program: Program, run: str) -> None:
        made = Made(program, run)
        for round in (1, 2):
            measured = made.of("measure", round, "privileged")
            rows = [row for each in measured for row in program.rows(each["output"])]
            known = {row["rollout_id"] for row in rows if row["privileged.logp"] is not None}
            assert known == says(made, round)
            assert known

    return check


def hinted(made: Made, round: int) -> set[str]:
    """Rows of problems with a hint."""
    names = {row["problem_id"] for row in made.table("hint")}
    return {row["rollout_id"] for row in made.learned(round) if row["problem_id"] in names}


def first_wrong(made: Made, round: int) -> set[str]:
    """The first wrong row of each group, which the policy criticised."""
    groups = [[row for row in group if not row["correct"]] for group in made.groups(round)]
    found = {group[0]["rollout_id"] for group in groups if group}
    critiques = made.about(round, "critique")
    assert {row["about"][0] for row in critiques} == found
    return found - {row["about"][0] for row in critiques if not row["completion"]}


def shown(template: str, policy: Callable[[Step], Any]) -> f.Loss:
    """A pull to what a policy says behind a prompt with more in it; none where that is missing."""

    def told(s: Step) -> Tensor:
        encode = AutoTokenizer.from_pretrained(s.lake / s.output).encode
        of_rows = zip(s.rollouts, problems(s), peers(s), strict=True)
        hints, critiques = strongest_hints(s), said_of(s)
        fields = [
            {
                "question": problem["question"],
                "solution": problem["solution"],
                "peer": peer,
                "hint": hints.get(row["problem_id"]),
                "critique": critiques.get(row["rollout_id"]),
            }
            for row, problem, peer in of_rows
        ]
        used = re.findall(r"{(\w+)}", template)
        texts = [template.format(**each) if all(each[name] for name in used) else None for each in fields]
        there = torch.tensor([text is not None for text in texts])[s.row]
        found = s.taken(s.all_of(policy(s), [encode(f"{text}\n") for text in texts]))
        return torch.where(there, found, s.now.detach())

    return f.k2_of(told)


def start(s: Step) -> Any:
    return s.events_of("update")[0]["inputs"]["policy"][0]


def before(s: Step) -> Any:
    return s.inputs["policy"][0]


def each_origin(own: f.Loss, given: f.Loss) -> f.Loss:
    """A loss of the policy's own rows and one of given rows, which there must be."""

    def loss(s: Step, a: Tensor) -> Tensor:
        assert s.own.any(), "no own row is learned from"
        assert not s.own.all(), "no given row is learned from"
        return torch.where(s.own[s.row], own(s, a), given(s, a))

    return loss


def luffy(s: Step, a: Tensor) -> Tensor:
    p = s.now.exp()
    return -a * p / (p + 0.1)


def rl_plus(s: Step, a: Tensor) -> Tensor:
    p, q = s.now.exp(), s.old.exp()
    return -2 * p / (q + (q + 1) / 2) * a * (1 - p.detach()) ** 0.5


def less_own_mean(s: Step) -> Tensor:
    mean = [s.reward[(s.group == g) & s.own].mean() for g in s.group]
    return s.reward - torch.stack(mean)


def hpt(s: Step, a: Tensor) -> Tensor:
    """Of each group its own rows or its solution, by whether one of the group was right."""
    solved = {row["group_id"] for row in s.all_rows("scores", "rollouts") if row["correct"] and row["origin"] != ORIGIN}
    for row, own in zip(s.batch, s.own.tolist(), strict=True):
        assert own == (row["group_id"] in solved)
    return each_origin(f.clip(0.2, 0.28), lambda s, _a: -s.now)(s, a)


def grao(s: Step) -> Tensor:
    """The mean over samples, and that over solutions, by one advantage; solutions before worse samples of a group."""
    likely, relative = s.mean(s.now), f.grpo(s)
    better = s.pairs(lambda y, i: not s.own[y] and bool(s.own[i]) and float(s.reward[y]) > float(s.reward[i]))
    assert better
    first, second = torch.tensor(better).T
    samples = (relative * likely)[s.own].sum() + 0.1 * log_sigmoid(likely[first] - likely[second]).sum()
    return -samples / s.own.sum() - (relative * likely)[~s.own].mean()


# Tokens


def conflicts(s: Step, a: Tensor) -> Tensor:
    """GTPO's weight: shared beginnings and ends, by going along each answer."""
    texts = [row["completion_tokens"] for row in s.rollouts]
    side = (s.reward - s.by_group(np.mean)).sign() * s.varied
    weights = list[Tensor]()
    for row, text in enumerate(texts):
        others = [texts[i] for i in range(len(texts)) if s.group[i] == s.group[row] and side[i] * side[row] < 0]
        shared = [0, 0]
        for turned in (0, 1):
            ordered = [each[::-1] if turned else each for each in (text, *others)]
            while shared[turned] < len(text) and any(
                len(each) > shared[turned] and each[shared[turned]] == ordered[0][shared[turned]]
                for each in ordered[1:]
            ):
                shared[turned] += 1
        weight, factor = torch.ones(len(text), dtype=torch.float64), 2.0 if side[row] > 0 else 0.0
        weight[: shared[0]] *= factor
        weight[len(text) - shared[1] :] *= factor
        weights.append(weight / max(1, min(len(text), sum(shared))))
    return torch.cat(weights)


def gtpo(s: Step) -> Tensor:
    mean = s.mean(s.entropy.detach())
    return torch.where(s.varied & (mean <= 0.7), f.grpo(s) - 0.1 * mean, 0.0)


@cache
def association(a: int, b: int, c: int, d: int, tf_right: float, tf_wrong: float) -> float:
    """KTAE's value of a token that a right and b wrong answers have, and c and d do not."""

    def h(*counts: int) -> float:
        p = np.array([n for n in counts if n]) / max(1, sum(counts))
        return float(-(p * np.log2(p)).sum())

    p = fisher_exact([[a, b], [c, d]]).pvalue
    n = a + b + c + d
    gain = h(a + c, b + d) - (a + b) / n * h(a, b) - (c + d) / n * h(c, d)
    ways = np.arcsin(np.sqrt(a / (a + c))) - np.arcsin(np.sqrt(b / (b + d)))
    ways += tf_right / (tf_wrong + 1e-5) - tf_wrong / (tf_right + 1e-5)
    strength = (np.exp(-2 * p) if p < 1 - 1e-9 else 0.0) + gain
    return float(2 * expit(strength * ways / 2) - 1)


def ktae(s: Step) -> Tensor:
    texts, found = [row["completion_tokens"] for row in s.rollouts], list[float]()
    own = f.grpo(s)
    for row, text in enumerate(texts):
        members = [i for i in range(len(texts)) if s.group[i] == s.group[row]]
        sides = [[texts[i] for i in members if (s.reward[i] > 0) == right] for right in (True, False)]
        if not all(sides):
            found += [float(own[row])] * len(text)
            continue
        sizes = [sum(map(len, side)) for side in sides]
        for token in text:
            have = [sum(token in each for each in side) for side in sides]
            share = [sum(each.count(token) for each in side) / size for side, size in zip(sides, sizes, strict=True)]
            tf = [3 * p / (p + 2 * (0.5 + 0.5 * size / np.mean(sizes))) for p, size in zip(share, sizes, strict=True)]
            lack = [len(side) - n for side, n in zip(sides, have, strict=True)]
            found.append(float(own[row]) + association(*have, *lack, *tf))
    return torch.tensor(found, dtype=torch.float64)


def disagreement(s: Step, _a: Tensor) -> Tensor:
    """TW-GRPO's weight by the divergence of a group's answers at each place, of the 16 likeliest tokens of any."""
    known = s.all_of(before(s))
    first = (s.length.cumsum(0) - s.length).tolist()
    found, weight = torch.zeros(len(s.row), dtype=torch.float64), torch.ones(len(s.row), dtype=torch.float64)
    for group in s.group.unique():
        members = (s.group == group).nonzero()[:, 0].tolist()
        places = list[int]()
        for place in range(max(int(s.length[i]) for i in members)):
            at = [first[i] + place for i in members if s.length[i] > place]
            logp, top = known[at], known[at].topk(16)
            counted = torch.zeros(logp.shape[1], dtype=torch.bool)
            counted[top.indices.flatten()] = True
            floor = torch.maximum(logp, top.values[:, -1:])[:, counted]
            d = (floor.mean(0) - floor).clamp(-11, 11)
            found[at] = (d.exp() - d - 1).sum() / len(at)
            places += at
        least, most = found[places].min(), found[places].max()
        weight[places] = 1 + 0.7 * (found[places] - least) / (most - least + 1e-8)
    return weight


def sspo(s: Step, a: Tensor) -> Tensor:
    """Lines of each completion: their mean log ratio, in bounds by their entropy."""
    line = list[int]()
    for row in s.rollouts:
        texts = AutoTokenizer.from_pretrained(s.lake / s.output).convert_ids_to_tokens(row["completion_tokens"])
        number = max(line, default=-1) + 1
        for token, following in pairwise([*texts, ""]):
            line.append(number)
            number += token == "\n" and following != "\n"
    part = torch.tensor(line)

    def mean(values: Tensor) -> Tensor:
        total = values.new_zeros(int(part.max()) + 1).index_add(0, part, values)
        return (total / torch.bincount(part))[part]

    ratio, entropy = mean(s.now - s.old).exp(), s.entropy.detach()
    factor = (mean(entropy) / s.mean(entropy)[s.row]).clamp(0.5, 2)
    return -torch.minimum(ratio * a, torch.clamp(ratio, 1 - 0.04 * factor, 1 + 0.05 * factor) * a)


WORKED = "\n\nHere is a worked solution:\n{solution}\n\nNow solve the problem in your own words."
EXAMPLE = "\n\nThis is an example of a response to the question:\n{solution}\n\nNow answer with a response of your own."
HINT = "\n\nHere is a hint:\n{hint}\n\nNow solve the problem in your own words."
CRITIQUE = "\n\nFeedback on an earlier attempt:\n{critique}\n\nCorrectly solve the original question."
PEER = "\n\nCorrect solution:\n{peer}\n\nCorrectly solve the original question."
own_clip = f.clip(0.2, 0.28)

GIVEN_METHODS: Mapping[str, Check] = {
    "gkd": Objective(gkd),
    "kdrl": Objective(plus=(Plus(f.k2_of(teacher), 0.002),), update=0),
    "on_policy_distillation": Objective(f.k2_of(teacher)),
    "star_ckd": Objective(star),
    "mopd": Objective(f.k2_of(of_domain)),
    "opsd": Objective(shown(f"{{question}}{WORKED}", start)),
    "opsd_hint": all_of(with_text(hinted), Objective(shown(f"{{question}}{HINT}", start))),
    "sdft": Objective(shown(f"{{question}}{EXAMPLE}", before)),
    "sdpo": Objective(shown(f"{{question}}{PEER}", before)),
    "sdpo_critique": all_of(with_text(first_wrong), Objective(shown(f"{{question}}{CRITIQUE}", before))),
    "grao": Whole(grao, has_coefficients=False),
    "hpt": Objective(hpt),
    "luffy": Objective(each_origin(own_clip, luffy)),
    "rl_plus": Objective(
        each_origin(f.clip(1.0, 1e6), rl_plus),
        less_own_mean,
        f.fixed_length,
        plus=(Plus(f.entropy, 0.001, mean=f.fixed_length),),
    ),
    "sft": Objective(each_origin(own_clip, lambda s, _a: -s.now)),
    "gtpo": Objective(f.reinforce, gtpo, f.sequence_mean, weight=conflicts),
    "ktae": Objective(f.clip(0.2, 0.2), ktae),
    "sspo": Objective(sspo, mean=f.sequence_mean),
    "tw_grpo": Objective(f.clip(0.2, 0.2), weight=disagreement),
}
