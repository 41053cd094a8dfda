"""Methods that choose problems, phases, or what is remembered from round to round: one entry a method."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.conftest import Program
from tests.e2e.methods import formulas as f
from tests.e2e.methods.made import Made, Row, by, own, rate, same
from tests.e2e.methods.objectives import Check, Objective, all_of
from tests.e2e.methods.shaping import in_rounds, part
from tests.e2e.methods.step import Step

Keeps = Callable[[Row], bool]


def plans_only(keeps: Keeps, *, rounds: tuple[int, ...] = (1, 2)) -> Check:
    """Every problem of the first plans is kept by a rule, which refuses some that were known."""

    def check(program: Program, run: str) -> None:
        made = Made(program, run)
        for round in rounds:
            assert made.planned(round)
            assert all(keeps(row) for row in made.planned(round))
        known = made.given("curate", "difficulty", rounds[-1])
        assert not all(keeps({**made.problems[row["problem_id"]], **row}) for row in known)

    return check


def as_all_rose(made: Made, round: int) -> None:
    """LIMR: the history of a problem lies along the mean of all, at least 0.6."""
    known = [row["history"] for row in made.given("curate", "difficulty", round)]
    mean = [np.mean([each[k] for each in known if len(each) > k]) for k in range(max(map(len, known)))]

    def score(history: list[float]) -> float:
        m = np.array(mean[: len(history)])
        return 1 - float(((np.array(history) - m) ** 2).sum() / ((1 - m) ** 2).sum())

    assert all(score(row["history"]) >= 0.6 for row in made.planned(round))
    assert min(map(score, known)) < 0.6


def hardest(name: str, num: int, round: int) -> Callable[[Made], None]:
    """The problems of the lowest values of a column are planned."""

    def check(made: Made) -> None:
        known = sorted(row[name] for row in made.given("curate", "difficulty", round))
        same(sorted(row[name] for row in made.planned(round)), known[:num])

    return check


def drive(program: Program, run: str) -> None:
    """The hardest problems, with twice as many rollouts, in the second stage."""
    made = Made(program, run)
    hardest("pass_rate", 4, 2)(made)
    (first,), (second,) = ({row["n"] for row in made.plan(round) if not row["hint_level"]} for round in (1, 2))
    assert second == 2 * first


def lengths(*expected: int) -> Check:
    """Completion limits of the rounds."""

    def check(program: Program, run: str) -> None:
        made = Made(program, run)
        assert [{row["max_tokens"] for row in made.plan(round)} for round in (1, 2)] == [{each} for each in expected]

    return check


def phases(program: Program, run: str) -> None:
    """The second round is of another phase than the first, from the policy of the first."""
    made = Made(program, run)
    (first,), (second,) = (made.of("update", round) for round in (1, 2))
    assert second["inputs"]["policy"] == [first["output"]]
    started = program.events(run)[0]["params"]
    recipe = (json.loads(started) if isinstance(started, str) else started)["recipe"]
    assert len(recipe.get("phase", ())) == 2


def sizes(num: int) -> Check:
    """Rows of every group."""
    return in_rounds(lambda made, round: same({len(group) for group in made.first(round)}, [num]))


def tracked(made: Made, round: int, name: str) -> list[Row]:
    """What a tracker kept after a round."""
    found = [row for event in made.of("tracker", round) for row in made.program.rows(event["output"])]
    return [{key.removeprefix(f"{name}."): value for key, value in row.items()} for row in found]


def over_rounds(
    name: str, key: str, columns: tuple[str, ...], step: Callable[..., dict[str, tuple[float, ...]]]
) -> Check:
    """A tracker's table after each round is what a rule makes of that before and the rows of the round."""

    def check(program: Program, run: str) -> None:
        made, known = Made(program, run), dict[str, tuple[float, ...]]()
        for round in (1, 2):
            rows = [{**made.problems[row["problem_id"]], **row} for row in made.learned(round) if own(row)]
            known = step(known, rows)
            found = {row[key]: tuple(row[column] for column in columns) for row in tracked(made, round, name)}
            assert found.keys() == known.keys()
            same([x for each in found for x in found[each]], [x for each in found for x in known[each]])

    return check


def domain_rewards(known: Any, rows: list[Row]) -> Any:
    """RuleReasoner: half of what was known, half of the mean reward of the round."""
    found = dict(known)
    for group in by(rows, "domain"):
        mean, domain = float(np.mean([row["reward"] for row in group])), group[0]["domain"]
        found[domain] = (0.5 * known[domain][0] + 0.5 * mean,) if domain in known else (mean,)
    return found


def domain_gains(known: Any, rows: list[Row]) -> Any:
    """SEC: the mean absolute advantage of the round, half of it."""
    found, gains = dict(known), Counter[str]()
    for group in by(rows, "group_id"):
        r = np.array([row["reward"] for row in group])
        gains[group[0]["domain"]] += float(np.abs((r - r.mean()) / r.std(ddof=1)).sum()) if np.ptp(r) else 0.0
    for group in by(rows, "domain"):
        domain = group[0]["domain"]
        before = known.get(domain, (0.0,))[0]
        found[domain] = (before + 0.5 * (gains[domain] / len(group) - before),)
    return found


def beta_posterior(known: Any, rows: list[Row]) -> Any:
    """VADE: counts of a sampled problem fade to 0.9, what others have beyond the prior to 0.99."""
    rows = [row for row in rows if not row["hint_level"]]
    found = {name: tuple(1 + 0.99 * (x - 1) for x in each) for name, each in known.items()}
    for group in by(rows, "problem_id"):
        name, right = group[0]["problem_id"], sum(bool(row["correct"]) for row in group)
        before = known.get(name, (1.0, 1.0))
        found[name] = (0.9 * before[0] + right, 0.9 * before[1] + len(group) - right)
    return found


def unlike_each_other(_known: Any, rows: list[Row]) -> Any:
    """MMR1: one minus the mean cosine of the word counts of two rollouts; problems keep it until sampled again."""
    found = dict(_known)
    for group in by(rows, "problem_id"):
        words = [Counter(re.findall(r"\w+", row["completion"].lower())) for row in group]
        vocabulary = sorted({word for each in words for word in each})
        counts = np.array([[each[word] for word in vocabulary] for each in words], dtype=np.float64)
        unit = counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-12)
        if len(group) > 1:
            cosines = (unit @ unit.T)[np.triu_indices(len(group), 1)]
            found[group[0]["problem_id"]] = (1 - float(cosines.mean()),)
    return found


def responses(counts: Mapping[tuple[str, int], list[int]]) -> tuple[dict[str, float], float]:
    """Difficulties, and the ability of the newest policy, of the largest posterior of right and wrong answers."""
    names, when = sorted({name for name, _ in counts}), sorted({each for _, each in counts})

    def lost(x: Any) -> float:
        theta, b = dict(zip(when, x, strict=False)), dict(zip(names, x[len(when) :], strict=True))
        z = {(name, each): theta[each] - b[name] for name, each in counts}
        fit = sum(r * np.log(expit(z[at])) + w * np.log(expit(-z[at])) for at, (r, w) in counts.items())
        return float(-fit + (x[: len(when)] ** 2).sum() / 2 + (x[len(when) :] ** 2).sum() / 8)

    best = minimize(lost, np.zeros(len(when) + len(names)), method="BFGS").x
    return dict(zip(names, best[len(when) :], strict=True)), float(best[len(when) - 1])


def rasch(program: Program, run: str) -> None:
    """Abilities and difficulties by another optimiser; problems whose outcome is certain are not planned."""
    made, counts = Made(program, run), dict[tuple[str, int], list[int]]()
    for round in (1, 2):
        for row in made.learned(round):
            if own(row) and not row["hint_level"]:
                counts.setdefault((row["problem_id"], round), [0, 0])[not row["correct"]] += 1
        difficulty, ability = responses(counts)
        found = {row["problem_id"]: row for row in tracked(made, round, "irt")}
        np.testing.assert_allclose(
            [found[name]["difficulty"] for name in difficulty], [*difficulty.values()], atol=1e-2
        )
        np.testing.assert_allclose([row["ability"] for row in found.values()], ability, atol=1e-2)
    before = {row["problem_id"]: row["rate"] for row in tracked(made, 1, "irt")}
    assert all(0.1 <= before.get(row["problem_id"], 0.5) <= 0.9 for row in made.planned(2))


def concentration(made: Made) -> dict[str, float]:
    """The mean cosine of two hidden states of each problem's prompt under the starting policy."""
    folder = made.program.home / "lake" / made.of("update", 1)[0]["inputs"]["policy"][0]
    model, encode = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder).encode
    found = dict[str, float]()
    for name, row in made.problems.items():
        with torch.no_grad():
            states = model(torch.tensor([encode(row["question"] + "\n")]), output_hidden_states=True).hidden_states[-1][
                0
            ]
        cosines = torch.nn.functional.cosine_similarity(states[:, None], states[None], dim=-1)
        found[name] = float(cosines[~torch.eye(len(states), dtype=torch.bool)].mean())
    return found


def gain_rl(program: Program, run: str) -> None:
    """The rank moves on by accuracy and concentration of the round's rollouts."""
    made, mu = Made(program, run), 0.0
    known = concentration(made)
    for round in (1, 2):
        rows = [row for row in made.learned(round) if own(row)]
        accuracy, angle = rate(rows), float(np.mean([known[row["problem_id"]] for row in rows]))
        mu += float(np.clip(20 * np.tanh(2 * (accuracy - 0.5)) + 20 * np.tanh(2 * angle), 0, 40))
        found = [row["mu"] for row in tracked(made, round, "gain_rl")]
        np.testing.assert_allclose(found, [mu], rtol=1e-4)


def one_problem(made: Made, round: int) -> None:
    """1-shot: one problem fills the batch."""
    assert len({row["problem_id"] for row in made.table("curate", round)}) == 1
    assert len(made.table("curate", round)) > 1


def without_leaked(program: Program, run: str) -> None:
    """No problem of the training is one of the suite, nor shares 13 words in a row with one; many would be."""
    made = Made(program, run)
    suite = [row["question"] for row in made.table("ingest", None, "eval")]

    def runs(text: str) -> set[tuple[str, ...]]:
        words = re.sub(r"[^\w\s]", "", text.lower()).split()
        return {tuple(words[at : at + 13]) for at in range(len(words) - 12)}

    leaked = set[tuple[str, ...]]().union(*map(runs, suite))
    questions = {row["problem_id"]: row["question"] for row in made.problems.values()}
    refused = {name for name, text in questions.items() if text in suite or runs(text) & leaked}
    planned = {row["problem_id"] for round in (1, 2) for row in made.table("curate", round)}
    assert len(refused) > len(questions) / 3
    assert not planned & refused


def bleu(made: Made, round: int) -> None:
    """BLEU of the last 50,000 characters against the answer, a number alone, and problems of the lowest first."""
    found, expected = list[float](), list[float]()
    for row in made.learned(round):
        gold, said = made.problems[row["problem_id"]]["answer"], row["completion"].replace("-\n", "").replace("\n", " ")
        words = re.sub(r"([^\w\s.,-]|(?<=\d)-)", r" \1 ", f" {said} ").split()
        hits = [min(1, words.count(gold)) if n == 1 else 0 for n in (1, 2, 3, 4)]
        parts = [(hit + 1) / (max(0, len(words) - n + 1) + 1) for n, hit in enumerate(hits, 1)]
        found.append(row["reward"])
        expected.append(float(np.prod(parts) ** 0.25) if words else 0.0)
        assert row["correct"] == (row["reward"] >= 0.5)
    same(found, expected)
    assert 0 < min(found) < max(found) < 1


def sampled_by_the_start(program: Program, run: str) -> None:
    """The second round's rollouts are of the policy that the first update began with."""
    made = Made(program, run)
    start = made.of("update", 1)[0]["inputs"]["policy"]
    assert {tuple(each["inputs"]["policy"]) for each in made.of("rollout", 2)} == {tuple(start)}
    assert made.of("update", 2)[0]["inputs"]["policy"] != start


def given_rows(s: Step) -> Any:
    return 1 - s.own.double()


def surprising(s: Step, _a: Any) -> Any:
    """Light-IF: the fifth of the tokens of right answers that is least likely beyond the entropy."""
    excess, right = -(s.now + s.entropy).detach(), s.correct[s.row] == 1
    kept = (excess >= float(np.quantile(excess[right].numpy(), 0.8)) - 1e-7).double()
    return kept / kept[right].mean()


def mostly_solved_at_first(row: Row) -> bool:
    """Light-IF: the first phase."""
    return not row["history"] or row["history"][0] >= 0.75


def lora(program: Program, run: str) -> None:
    """An adapter of rank 16 and scale 2 on every linear layer; ten times the learning rate."""
    made = Made(program, run)
    event = made.of("update", 2)[0]
    (found,) = (program.home / "lake" / event["output"]).rglob("adapter_config.json")
    adapter = json.loads(found.read_text())
    assert (adapter["r"], adapter["lora_alpha"]) == (16, 32)
    assert {"q_proj", "v_proj", "o_proj", "up_proj", "down_proj"} <= {*adapter["target_modules"]}
    assert event["config"]["lr"] == 1e-4


CURATING_METHODS: Mapping[str, Check] = {
    "bleuberi": in_rounds(bleu),
    "brorl": sizes(512),
    "cascade": lengths(20, 40),
    "decontaminated": without_leaked,
    "drive": drive,
    "gain_rl": gain_rl,
    "infi_mmr": phases,
    "irt": rasch,
    "light_if": all_of(
        plans_only(mostly_solved_at_first),
        Objective(lambda s, _a: -s.now, mean=part(lambda s: s.correct), weight=surprising),
    ),
    "limr": in_rounds(as_all_rose),
    "lmm_r1": all_of(phases, Objective(f.clip(0.2, 0.28), f.gae(1.0), update=0)),
    "lora": lora,
    "med_cco": phases,
    "mmr1_vas": over_rounds("diversity", "problem_id", ("dissimilarity",), unlike_each_other),
    "modomodo": plans_only(lambda row: row["domain"] == "chain_sum/3"),
    "mr_guard": all_of(
        plans_only(lambda row: row["pass_rate"] is None or row["pass_rate"] >= 0.5, rounds=(1,)),
        Objective(lambda s, _a: -s.now, mean=part(given_rows)),
    ),
    "one_step_off": sampled_by_the_start,
    "rule_reasoner": over_rounds("dads", "problem.domain", ("reward",), domain_rewards),
    "sec": over_rounds("sec", "problem.domain", ("gain",), domain_gains),
    "vade": over_rounds("beta_posterior", "problem_id", ("alpha", "beta"), beta_posterior),
    "zero_variance": plans_only(lambda row: row["n"] == 0 or 0 < row["k"] < row["n"]),
}
