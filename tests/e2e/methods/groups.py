"""Methods that credit answers by sets of their group, by their parts, or by how sure the policy is: one entry each."""

import re
from collections.abc import Callable, Mapping
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer

from tests.e2e.methods import formulas as f
from tests.e2e.methods.given import problems
from tests.e2e.methods.made import Made, Row, answer, by, own, same
from tests.e2e.methods.objectives import Check, Objective, Whole, all_of, by_reward, clipped
from tests.e2e.methods.shaping import in_rounds, rewards
from tests.e2e.methods.step import AtStep, Step

# Rewards of the batch


def most_likely(made: Made, round: int, rows: list[Row]) -> bool:
    """Return whether each token is the likeliest under the policy of the round."""
    step = Step(made.program, made.run, round - 1)
    step.rollouts, step.temperature = rows, torch.ones(len(rows), dtype=torch.float64)
    step.row = torch.repeat_interleave(torch.tensor([len(row["completion_tokens"]) for row in rows]))
    found = step.all_of(step.inputs["policy"][0]).argmax(-1)
    return found.tolist() == [token for row in rows for token in row["completion_tokens"]]


def over_greedy(made: Made, round: int) -> None:
    """ReMax: the reward less that of one greedy answer to the problem, which is not learned from."""
    rows = made.learned(round)
    greedy = {row["in_group"]: row for row in rows if row["origin"] == "greedy"}
    assert all(row["temperature"] == 0 for row in greedy.values())
    assert most_likely(made, round, [*greedy.values()])
    groups = by([row for row in rows if own(row)], "in_group")
    assert len(groups) == len(greedy) == len(rows) - sum(map(len, groups))
    trained = [row for group in groups for row in group]
    same([row["shaped"] for row in trained], [row["reward"] - greedy[row["in_group"]]["reward"] for row in trained])
    assert 0 < sum(row["reward"] for row in greedy.values()) < len(greedy)
    assert [row["taken"] for row in rows] == [own(row) for row in rows]


def sum_of_normalised(made: Made, round: int) -> None:
    """GDPO: each reward is normalised in its group, then their sum over all rows."""

    def normalised(values: Any) -> Any:
        array = np.array(values, dtype=np.float64)
        return (array - array.mean()) / (array.std(ddof=1) + 1e-6) if np.ptp(array) > 0 else 0 * array

    rows, total = list[Row](), list[float]()
    for group in made.standing(round):
        parts = [dict(row["components"]) for row in group]
        assert {*parts[0]} == {"numeric", "format"}
        total += sum(normalised([part[name] for part in parts]) for name in parts[0]).tolist()
        rows += group
    same([row["shaped"] for row in rows], normalised(total))


def of_sets(group: list[Row]) -> list[float]:
    """Polychromic: over all sets of 4 rows with a row, the mean reward times the share of distinct answers."""
    assert len(group) == 8
    scores = {
        one: np.mean([group[i]["reward"] for i in one]) * len({answer(group[i]) for i in one}) / 4
        for one in combinations(range(len(group)), 4)
    }
    return [float(np.mean([score for one, score in scores.items() if i in one])) for i in range(len(group))]


# Advantages


def largest_of(k: int) -> Callable[[Any], Any]:
    """Of each row, the mean over all sets of k rows with it of what the largest reward loses without it."""

    def each(r: Any) -> Any:
        found = list[float]()
        for i in range(len(r)):
            others = [r[list(one)].max() for one in combinations([j for j in range(len(r)) if j != i], k - 1)]
            found.append(float(np.mean([max(r[i], most) - most for most in others])))
        return np.array(found)

    return each


def lead(r: Any) -> Any:
    """The best row alone: its lead over the second, over the std of the group."""
    first, second = np.sort(r)[:-3:-1]
    return np.where(r == first, (first - second) / (r.std(ddof=1) + 1e-6), 0.0)


def some(advantage: AtStep) -> AtStep:
    """An advantage that there is."""

    def found(s: Step) -> Tensor:
        values = advantage(s)
        assert values.any(), "no row has an advantage"
        return values

    return found


def certainty(s: Step) -> Tensor:
    """RENT: minus the mean entropy of the tokens, by the group."""
    return s.by_group(f.z, -s.mean(s.entropy.detach()))


def places(s: Step) -> list[list[tuple[int, int]]]:
    """First character, and the one behind the last, of each token of each completion."""
    tokenizer, found = AutoTokenizer.from_pretrained(s.lake / s.output), list[list[tuple[int, int]]]()
    for row in s.rollouts:
        ends = [len(tokenizer.decode(row["completion_tokens"][:at], skip_special_tokens=True)) for at in range(99)]
        ends = ends[: len(row["completion_tokens"]) + 1]
        assert ends[-1] == len(row["completion"])
        found.append([*pairwise(ends)])
    return found


def by_items(s: Step) -> Tensor:
    """Rank-GRPO: lines of a completion, from each on the discounted hits, by the lines at its place in the group."""
    values, tokens = list[list[float]](), list[list[int | None]]()
    for row, problem, spans in zip(s.rollouts, problems(s), places(s), strict=True):
        hits, of_token, seen = list[float](), list[int | None]([None] * len(spans)), False
        for line in re.finditer(r"[^\n]*[^\s][^\n]*", row["completion"]):
            begun = re.search(r"[-+]?\w", line[0])
            said = re.sub(r"\W+$", "", line[0][begun.start() :]) if begun else ""
            hits.append(float(said == problem["answer"] and not seen))
            seen = seen or bool(hits[-1])
            for at, (first, behind) in enumerate(spans):
                if first < line.end() and behind > line.start():
                    of_token[at] = len(hits) - 1
        values.append(hits)
        tokens.append(of_token)
    gain = np.zeros((len(values), max(map(len, values))))
    for row, hits in enumerate(values):
        for k in range(len(hits)):
            gain[row, k] = sum(hit / np.log2(j + 2) for j, hit in enumerate(hits) if j >= k)
    assert gain.any()
    relative = torch.stack([s.by_group(f.z, column) for column in torch.from_numpy(gain).T], 1)
    flat = [0.0 if k is None else float(relative[row, k]) for row, of in enumerate(tokens) for k in of]
    return torch.tensor(flat, dtype=torch.float64)


def early_calls(s: Step) -> Tensor:
    """ASPO: right answers gain by how early their call (`inputs.CALLS`) is, at most 0.7 of the advantage."""
    found, moved = f.grpo(s), 0
    first = list[int | None]()
    for row, spans in zip(s.rollouts, places(s), strict=True):
        at = row["sample"]
        there = at < min(6, len(row["completion"]))
        first.append(next(i for i, (_, end) in enumerate(spans) if end > at) if there else None)
    for group in s.group.unique().tolist():
        rows = [i for i, of in enumerate(s.group.tolist()) if of == group and s.correct[i] and first[i] is not None]
        if not rows:
            continue
        p, length = (np.array(each, dtype=float) for each in ([first[i] for i in rows], s.length[rows].tolist()))
        for i, shift in zip(rows, -2 * (p - p.mean()) / length.mean(), strict=True):
            bound = 0.7 * abs(float(found[i]))
            moved += shift != 0 < bound
            found[i] += float(np.clip(shift, -bound, bound))
    assert moved
    return found


# Losses and weights


def flow(s: Step) -> Tensor:
    """FlowRL: trajectory balance with the mean log ratio to the start; Z is the best one for each group."""
    a = f.by_group(lambda r: (r - r.mean()) / (r.std(ddof=1) + 1e-6) if np.ptp(r) > 0 else 0 * r)(s)
    weight = s.sum(s.now - s.old).exp().clamp(0.8, 1.2).detach()
    h, parts = s.mean(s.now - s.ref), list[Tensor]()
    for group in s.group.unique():
        at = s.group == group
        log_z = (weight[at] * (15 * a[at] - h[at])).sum() / weight[at].sum()
        parts.append(weight[at] * (log_z + h[at] - 15 * a[at]) ** 2)
    return torch.cat(parts).sum() / len(s.length)


def without_curved(step: float) -> Callable[[Step, Tensor], Tensor]:
    """CAPO: 0 for tokens whose step on the head alone moves the policy by 0.01 nats or lowers the objective.

    Gradient and Fisher information are those of automatic differentiation in the weights of the head.
    """

    def weight(s: Step, a: Tensor) -> Tensor:
        head = s.policy.lm_head.weight.detach()

        def body(**inputs: Tensor) -> Any:
            return SimpleNamespace(logits=s.policy.model(**inputs).last_hidden_state)

        def of_token(hidden: Tensor, token: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
            def logp(weights: Tensor) -> Tensor:
                return (weights @ hidden / temperature).log_softmax(-1)

            gradient = torch.func.grad(lambda w: logp(w).gather(0, token[None])[0])(head)
            p, logits = logp(head).exp(), gradient @ hidden / temperature  # of a step along it, since they are linear
            return (gradient**2).sum(), (p * (logits - (p * logits).sum()) ** 2).sum()

        hidden = s.logits(body, at_1=True).detach()
        size, fisher = torch.func.vmap(of_token)(hidden, s.tokens, s.temperature[s.row])
        shift = step**2 * a**2 * fisher / 2
        gain = step * a**2 * size - step**2 * a**3 * fisher / 2
        kept = ((shift <= 0.01) & (gain >= 0)).double()
        assert 0 < float(kept.mean()) < 1
        np.testing.assert_allclose(s.metrics["policy/curved_frac"], 1 - float(kept.mean()), atol=1e-5)
        return kept

    return weight


GROUP_METHODS: Mapping[str, Check] = {
    "aspo": clipped(advantage=early_calls),
    "capo_curvature": Objective(weight=without_curved(5e-3)),
    "flowrl": Whole(flow),
    "gdpo": all_of(in_rounds(sum_of_normalised), clipped(advantage=f.own_reward)),
    "grpo_passk": clipped(advantage=some(f.by_group(lead))),
    "pkpo": by_reward(some(f.by_group(largest_of(4))), f.fixed_length),
    "polychromic": all_of(rewards(of_sets), clipped(advantage=f.dr_grpo)),
    "rank_grpo": clipped(advantage=by_items, mean=f.sequence_mean),
    "remax": all_of(in_rounds(over_greedy), by_reward(f.own_reward, f.fixed_length)),
    "rent": clipped(advantage=certainty),
}
