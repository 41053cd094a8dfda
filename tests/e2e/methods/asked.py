"""Methods rewarded by what a model says of answers: its numbers, probabilities, preferences: one entry a method."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gradus.models.tiny_tokenizer import tiny_tokenizer
from tests.e2e.methods.judging import judged, reward_of, role_update, verifier_agrees
from tests.e2e.methods.made import Made, Row, answer, same
from tests.e2e.methods.objectives import Check, all_of
from tests.e2e.methods.shaping import in_rounds
from tests.scorers import scorer


@cache
def the_scorer() -> Any:
    return scorer(positions=1024)


def score(question: str, said: str) -> float:
    """The number of the tests' reward model for one text."""
    tokens = tiny_tokenizer()(f"{question}\n{said}")["input_ids"]
    with torch.no_grad():
        return float(the_scorer()(input_ids=torch.tensor([tokens])).logits[0, 0])


def behind_thinking(problem: Row, said: str) -> float | None:
    """RLMT: the reward model's number of what stands behind the thinking; None of one that thinks to its end."""
    response = said.rpartition("</think>")[2]
    return None if "<think>" in response else score(problem["question"], response)


def with_rules(made: Made, round: int) -> None:
    """AutoRule: the reward model's number, and the share of three rules whose check says 7."""
    said = judged("judge", made, round)
    found = list[tuple[float, float]]()
    for row in made.learned(round):
        checks = said[row["rollout_id"]]
        assert len(checks) == 3
        met = sum("7" in each["completion"] for each in checks) / 3
        found.append((row["shaped"], score(made.problems[row["problem_id"]]["question"], row["completion"]) + met))
    np.testing.assert_allclose([one for one, _ in found], [other for _, other in found], atol=1e-5)
    assert np.ptp([shaped for shaped, _ in found]) > 0


def yes_rather_than_no(made: Made, round: int) -> None:
    """RLBFF: log P(7) - log P(85) of the round's policy behind question, answer and principle, over two principles."""
    (measured,) = made.of("measure", round)
    folder = made.program.home / "lake" / measured["inputs"]["policy"][0]
    model, encode = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder).encode

    def logp(text: str, word: str) -> float:
        before, after = encode(text + "\n"), encode(word)
        with torch.no_grad():
            logits = model(torch.tensor([before + after])).logits[0, len(before) - 1 : -1].double()
        return float(torch.log_softmax(logits, -1)[range(len(after)), after].sum())

    found = list[tuple[float, float]]()
    for row in made.learned(round):
        texts = [f"{made.problems[row['problem_id']]['question']}{row['completion']}{each}=" for each in ("12", "3")]
        found.append((row["shaped"], float(np.mean([logp(text, "7") - logp(text, "85") for text in texts]))))
    np.testing.assert_allclose([one for one, _ in found], [other for _, other in found], atol=1e-4)
    assert np.ptp([shaped for shaped, _ in found]) > 0


def one_or_two(row: Row) -> bool:
    """Think-RM: the judge's verdict in this run."""
    return "1" in row["completion"] or "2" in row["completion"]


def preferred(made: Made, round: int) -> None:
    """Think-RM: the sum of preferences over the others, by their root mean square."""
    found, expected = list[float](), list[float]()
    for group in made.groups(round):
        names = [row["rollout_id"] for row in group]
        said: dict[tuple[str, str], list[float]] = {}
        for row in made.about(round, "judge"):
            first, second = row["about"]
            if first in names:
                strength = 1.0 if one_or_two(row) else -1.0
                said.setdefault((first, second), []).append(strength)
                said.setdefault((second, first), []).append(-strength)
        assert {len(each) for each in said.values()} == {3}
        d = np.array([[np.mean(said.get((one, other), [0.0])) for other in names] for one in names])
        size = len(names)
        scale = np.sqrt((d**2).sum() / (2 * size * (size - 1)) + 1e-6)
        found += [row["shaped"] for row in group]
        expected += (d.sum(axis=1) / size / scale).tolist()
    same(found, expected)
    assert np.ptp(expected) > 0


def judge_prefers_better(made: Made, round: int) -> None:
    """Think-RM: the judge is rewarded for preferring the right one of two answers, and learns from no other pair."""
    right = {row["rollout_id"]: bool(row["correct"]) for row in made.learned(round)}
    found, expected = list[float](), list[float]()
    for row in role_update(made, round, "judge"):
        first, second = (right[each] for each in row["about"])
        if first == second:
            assert row["shaped"] is None
            continue
        found.append(row["shaped"])
        expected.append(float(one_or_two(row) == first))
    same(found, expected)


def rules_or_judge(made: Made, round: int) -> None:
    """Omni-Thinker: closed problems first, by their answers; then open ones, by a judge that sees their solution."""
    rows, said = made.learned(round), judged("judge", made, round)
    problems = [made.problems[row["problem_id"]] for row in rows]
    assert {problem["answer"] is None for problem in problems} == {round == 2}
    if round == 1:
        assert not made.about(round, "judge")
        golds = [float(problem["answer"]) for problem in problems]
        right = [answer(row) is not None and answer(row) == gold for row, gold in zip(rows, golds, strict=True)]
        same([row["shaped"] for row in rows], [float(each) for each in right])
        return
    verdicts = [said[row["rollout_id"]] for row in rows]
    asked = {row["group_id"]: row["messages"][-1]["content"] for row in made.plan(round) if row.get("use") == "judge"}
    for row, problem, (verdict,) in zip(rows, problems, verdicts, strict=True):
        assert asked[verdict["group_id"]] == problem["question"] + row["completion"] + problem["solution"]
    same([row["shaped"] for row in rows], [float("7" in each["completion"]) for (each,) in verdicts])


def segments(problem: Row, said: str) -> float:
    """RLPT: the judge's verdict of a prediction beside the text itself; here if it says `a`."""
    row = problem["row"]
    (verdict,) = (each for each in problem["judged"] if row["rollout_id"] in each["about"])
    assert verdict["messages"][-1]["content"] == f"{problem['question']}{said}|{problem['answer']}"
    return float("a" in verdict["completion"])


ASKED_METHODS: Mapping[str, Check] = {
    "autorule": in_rounds(with_rules),
    "libra_rm": all_of(verifier_agrees("judge"), reward_of(lambda _row, said: float(np.mean(said)))),
    "omni_thinker": in_rounds(rules_or_judge),
    "rlbff": in_rounds(yes_rather_than_no),
    "think_rm": all_of(in_rounds(preferred), in_rounds(judge_prefers_better)),
}
