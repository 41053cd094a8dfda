"""Methods that sample again within a round: one entry a method."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from tests.e2e.conftest import Program
from tests.e2e.methods import formulas as f
from tests.e2e.methods.given import each_origin, own_clip
from tests.e2e.methods.made import Made, Row, by, failed, own, rate
from tests.e2e.methods.objectives import Check, Objective, Plus, all_of
from tests.e2e.methods.shaping import in_band, in_rounds, part, takes
from tests.e2e.methods.step import Step


def joins_failed(origin: str, *, n: int = 1) -> Callable[[Made, int], None]:
    """Rows of an origin in the groups of which every own row failed, trained for the problem's own prompt."""

    def check(made: Made, round: int) -> None:
        found = 0
        plain = {
            row["problem_id"]: row["prompt_tokens"] for row in made.learned(round) if own(row) and not row["hint_level"]
        }
        for group in made.groups(round):
            mine, theirs = [row for row in group if own(row)], [row for row in group if row["origin"] == origin]
            found += len(theirs)
            assert not theirs or failed(mine)
            assert len(theirs) % n == 0
            for row in theirs:
                assert row["trained_prompt_tokens"] == plain[row["problem_id"]] != row["prompt_tokens"]
        assert found

    return check


def explained(made: Made, round: int) -> None:
    """ExPO: of every problem that failed whole an explanation of its answer, trained for the problem's own prompt."""
    firsts = {group[0]["problem_id"]: group for group in made.first(round)}
    rows = [row for row in made.learned(round) if row["origin"] == "explained"]
    assert {row["problem_id"] for row in rows} == {name for name, group in firsts.items() if failed(group)}
    for row in rows:
        assert made.problems[row["problem_id"]]["answer"] in row["messages"][-1]["content"]
        assert row["trained_prompt_tokens"] == firsts[row["problem_id"]][0]["prompt_tokens"]


# Hints


def next_levels(made: Made, round: int) -> None:
    """GHPO: levels 1 to 3 as long as a group fails whole; a group that was shown one takes its place."""
    groups, learned = made.groups(round), {row["rollout_id"] for row in Step(made.program, made.run, round - 1).table}
    levels = {group[0]["hint_level"] for group in groups}
    assert {0, 1} <= levels <= {0, 1, 2, 3}
    for group in groups:
        higher = [
            g
            for g in groups
            if g[0]["problem_id"] == group[0]["problem_id"] and g[0]["hint_level"] > group[0]["hint_level"]
        ]
        assert not higher or failed(group)
        if higher:
            assert not learned & {row["rollout_id"] for row in group}


def half_solved(made: Made, round: int) -> None:
    """SEELE: the hint at which a logistic curve of slope 8 through a problem's rates is at one half."""
    shares = {(row["problem_id"], row["level"]): row["fraction"] for row in made.table("hint")}
    shares |= {(name, 0): 0.0 for name in made.problems}
    seen = 0
    for rows in by([row for row in made.learned(round) if own(row)], "problem_id"):
        name = rows[0]["problem_id"]
        calls = by(rows, "wave", "call")
        tried = list[tuple[float, float]]()
        levels = list[int]()
        for number, call in enumerate(calls):
            level = call[0]["hint_level"]
            if number:
                curve = np.arange(-100, 201) / 100
                lost = [sum((p - 1 / (1 + np.exp(-8 * (h - b)))) ** 2 for h, p in tried) for b in curve]
                wanted = float(curve[int(np.argmin(lost))])
                known = {of: share for (each, of), share in shares.items() if each == name}
                nearest = min(abs(share - wanted) for share in known.values())
                assert abs(known[level] - wanted) <= nearest + 0.011
                assert abs(tried[-1][1] - 0.5) > 0.125
                assert len({row["group_id"] for row in rows}) == 1
                seen += 1
            tried.append((shares[name, level], rate(call)))
            levels.append(level)
        assert len(levels) == len(set(levels))
    assert seen


def own_hints(made: Made, round: int) -> None:
    """SAGE: the policy writes a hint of each level for problems that fail whole, and is shown them in order."""
    written = made.about(round, "written")
    firsts = {group[0]["problem_id"] for group in made.first(round) if failed(group)}
    assert {row["problem_id"] for row in written} == firsts
    assert all(len(each) == 2 for each in by(written, "problem_id"))
    said = {(row["problem_id"], text.strip()) for row in written if (text := row["completion"]).strip()}
    shown = [row for row in made.learned(round) if row["hint_level"]]
    assert {row["problem_id"] for row in shown} <= {name for name, _ in said}
    for row in shown:
        content = row["messages"][-1]["content"]
        assert any(name == row["problem_id"] and content.endswith(text) for name, text in said)


def fewest_points(program: Program, run: str) -> None:
    """KnowRL: all points and all but one are tried; the smallest subset as good as the best is kept."""
    made = Made(program, run)
    kept = {row["problem_id"]: row for row in tracked_rows(made, 1, "know_rl")}
    assert kept
    asked = {row["group_id"]: row["subset"] for row in made.plan(1) if row.get("use") == "probe"}
    for rows in by([{**row, "subset": asked[row["group_id"]]} for row in made.about(1, "probe")], "problem_id"):
        tried = {each[0]["subset"]: rate(each) for each in by(rows, "subset")}
        assert {3, 2, 1} <= {*tried}
        best = max(tried.values())
        found = kept[rows[0]["problem_id"]]
        enough = [each for each, accuracy in tried.items() if accuracy >= best]
        assert int(found["kept"]).bit_count() == min(each.bit_count() for each in enough)
        assert found["accuracy"] == best


def tracked_rows(made: Made, round: int, name: str) -> list[Row]:
    found = made.table("tracker", round)
    return [{key.removeprefix(f"{name}."): value for key, value in row.items()} for row in found]


def failed_get_hints(made: Made, round: int) -> None:
    """A hint only where every rollout failed with less of the solution."""
    hinted = [row for row in made.learned(round) if row["hint_level"]]
    for problem in by(made.learned(round), "problem_id"):
        if any(row["hint_level"] for row in problem):
            assert failed([row for row in problem if not row["hint_level"]])
    assert bool(hinted) == (round == 2)


# More rollouts


def until_enough(low: float, high: float) -> Callable[[Made, int], None]:
    """Further problems while fewer groups than the first plan has are neither all right nor all wrong."""

    def check(made: Made, round: int) -> None:
        first = made.first(round)
        enough = sum(0 < rate(group) < 1 and low <= rate(group) <= high for group in first)
        more = [row for row in made.learned(round) if row["wave"]]
        assert enough < len(first)
        assert more

    return check


def knapsack(made: Made, round: int) -> None:
    """The counts that make the most of 8 rollouts a group: by value, the best of all that add up to the same."""
    history = {row["problem_id"]: row["history"] for row in made.given("curate", "difficulty", round)}
    groups = made.groups(round)
    p = np.array([(history[group[0]["problem_id"]] or [0.5])[-1] for group in groups])
    n = np.array([len(group) for group in groups])
    assert n.sum() == 8 * len(groups)

    def value(counts: Any) -> float:
        return float(((1 - p**counts - (1 - p) ** counts) * p * (1 - p) ** 2).sum())

    best = np.full(len(groups), 2)
    for _ in range(int(n.sum() - best.sum())):
        gains = [value(best + (np.arange(len(p)) == at)) - value(best) for at in range(len(p))]
        best[int(np.argmax(gains))] += 1
    assert np.isclose(value(n), value(best))
    assert round == 1 or len({*n}) > 1


def pinned_down(made: Made, round: int) -> None:
    """XRPO: half as many rollouts again, one by one to the group whose interval shrinks most."""
    rows = [row for row in made.learned(round) if own(row)]
    last = max(row["wave"] or 0 for row in rows)
    first, extra = (
        by([row for row in rows if ((row["wave"] or 0) == last) == more], "group_id") for more in (False, True)
    )
    n = np.array([len(group) for group in first], dtype=np.float64)
    s = np.array([np.std([row["reward"] for row in group], ddof=1) for group in first])
    more = np.zeros(len(n), dtype=int)

    def half(counts: Any) -> Any:
        return stdtrit(counts - 1, 0.975) * s / np.sqrt(counts)

    for _ in range(int(np.ceil(n.sum() / 2))):
        at = int(np.argmax(half(n) - half(n + 1) + 0.1 * np.sqrt(np.log(1 + n.sum()) / n)))
        n[at] += 1
        more[at] += 1
    groups = [group[0]["group_id"] for group in first]
    assert [sum(row["group_id"] == name for group in extra for row in group) for name in groups] == more.tolist()


def branches(key: Callable[[Made, int, Row], list[float]], num: Callable[[list[Row]], int]) -> Check:
    """Two branches of as many rollouts of each group as there should be, from the place of the largest key."""

    def check(made: Made, round: int) -> None:
        for group in made.groups(round):
            parents = [row for row in group if not row["parent"]]
            keys = {row["rollout_id"]: key(made, round, row) for row in parents}
            chosen = sorted(parents, key=lambda row: -max(keys[row["rollout_id"]]))[: num(parents)]
            made_of = by([row for row in group if row["parent"]], "parent")
            least = min(max(keys[row["rollout_id"]]) for row in chosen)
            assert len(made_of) == len(chosen)
            for branch in made_of:
                (parent,) = (row for row in parents if row["rollout_id"] == branch[0]["parent"])
                values = keys[parent["rollout_id"]]
                at = int(np.argmax(values))
                assert max(values) >= least - 1e-6
                assert len(branch) == 2
                for row in branch:
                    assert row["completion_tokens"][:at] == parent["completion_tokens"][:at]
                    assert row["spans"][0]["end"] <= at or row["spans"][0]["trained"]

    return in_rounds(check)


def improbable(_made: Made, _round: int, row: Row) -> list[float]:
    return [-value for value in row["logprobs"]]


def entropies(made: Made, round: int, row: Row) -> list[float]:
    """By a forward pass of the policy of the round."""
    step = Step(made.program, made.run, round - 1)
    step.rollouts, step.temperature = [row], torch.ones(1)
    step.row = torch.zeros(len(row["completion_tokens"]), dtype=torch.int64)
    logp = step.all_of(step.inputs["policy"][0], [row["prompt_tokens"]])
    return (-(logp.exp() * logp).sum(-1)).tolist()


def expanded(group: list[Row]) -> int:
    return int(np.ceil(len(group) * np.exp(-rate(group))))


def thinks_again(made: Made, round: int) -> None:
    """VL-Rethinker: a quarter of the finished rollouts goes on after a phrase, which nobody sampled, in their place."""
    rows = made.learned(round)
    firsts = [row for row in rows if not (row["parent"] or row["recall"]) and row["finish_reason"] == "stop"]
    again = [row for row in rows if row["parent"]]
    assert len(again) == len(firsts) // 4 > 0
    known = {row["rollout_id"]: row for row in firsts}
    learned = {row["rollout_id"] for row in Step(made.program, made.run, round - 1).table}
    stands = {row["rollout_id"] for group in made.standing(round) for row in group}
    for row in again:
        kept = known[row["parent"]]["completion_tokens"][:-1]
        assert row["completion_tokens"][: len(kept)] == kept
        assert any(span["source"] == "inserted" and not span["trained"] for span in row["spans"])
        assert row["parent"] not in learned
        assert (row["rollout_id"] in learned) == (row["rollout_id"] in stands)
    assert stands & {row["rollout_id"] for row in again}


def replayed(made: Made, round: int) -> None:
    """Stored groups with both outcomes for those without, from the second round on."""
    again = [row for row in made.learned(round) if row["recall"]]
    flat = sum(len({row["reward"] for row in group}) == 1 for group in made.first(round))
    stored = [group for group in made.groups(1) if len({row["reward"] for row in group}) == 2]
    assert round == 1 or len({row["group_id"] for row in again}) == min(flat, len(stored)) > 0
    assert all(0 < rate(group) < 1 for group in by(again, "group_id"))


def from_the_bank(made: Made, round: int) -> None:
    """VCRL: groups of a normalised variance below kappa are left out; in round 2 the best of round 1 replace them."""
    kappa = 0.3 + 0.5 * (round - 1) / 19

    def share(rows: list[Row]) -> float:
        k, n = sum(bool(row["correct"]) for row in rows), len(rows)
        return k * (n - k) / (n * n // 4)

    for rows in made.groups(round):
        assert {row["taken"] for row in rows} == {share(rows) >= kappa}
    first = made.first(round)
    flat = sum(share(rows) < kappa for rows in first)
    assert flat
    bank = {rows[0]["problem_id"]: share(rows) for rows in made.groups(1) if share(rows) >= 0.3}
    left = {name: p for name, p in bank.items() if round > 1 and name not in {rows[0]["problem_id"] for rows in first}}
    added = [row["problem_id"] for row in made.table("wave", round)]
    assert len(added) == min(flat, len(left))
    assert [left[name] for name in added] == sorted(left.values(), reverse=True)[: len(added)]
    assert round == 1 or added


def predicted_near_half(made: Made, round: int) -> None:
    """DOTS: the reference set is not learned from; others are sampled by its pass rates, and earlier groups."""
    rows = made.learned(round)
    first, later = ([row for row in rows if bool(row["wave"]) == after] for after in (False, True))
    assert not any(row["taken"] for row in first)
    assert all(row["taken"] for row in later)
    asked = [row for row in later if not row["recall"]]
    assert len({row["problem_id"] for row in asked}) == 6
    assert not {row["problem_id"] for row in asked} & {row["problem_id"] for row in first}
    assert round == 1 or any(row["recall"] for row in later)


def of(origin: str, *, right: bool = False) -> Callable[[Step], Tensor]:
    """Rows of an origin."""

    def at(s: Step) -> Tensor:
        found = torch.tensor([float(row["origin"] == origin) for row in s.table], dtype=torch.float64)
        return found * s.correct if right else found

    return at


def sft(s: Step, _a: Tensor) -> Tensor:
    return -s.now


WAVE_METHODS: Mapping[str, Check] = {
    "attn_rl": branches(improbable, expanded),
    "balanced": all_of(takes(in_band), in_rounds(until_enough(0.25, 0.75))),
    "dots": in_rounds(predicted_near_half),
    "expo": all_of(
        in_rounds(explained),
        Objective(mean=part(of("own")), plus=(Plus(sft, 0.1, mean=part(of("explained", right=True))),)),
    ),
    "ghpo": in_rounds(next_levels),
    "guide_grpo": all_of(in_rounds(joins_failed("guided")), Objective(each_origin(own_clip, f.behaviour_clip))),
    "knapsack_rl": in_rounds(knapsack),
    "know_rl": fewest_points,
    "regft": Objective(sft, mean=part(of("guided", right=True))),
    "sage": in_rounds(own_hints),
    "seele": in_rounds(half_solved),
    "surface": in_rounds(failed_get_hints),
    "tree_branches": branches(improbable, lambda _group: 1),
    "tree_entropy": branches(entropies, lambda _group: 1),
    "vcrl": in_rounds(from_the_bank),
    "vl_rethinker": in_rounds(thinks_again),
    "xrpo": all_of(in_rounds(pinned_down), in_rounds(joins_failed("guided"))),
}
