"""The model as measures see it, against a plain forward pass of transformers, row by row."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gradus.components.rows import Lists, Rows
from gradus.models.measures.likelihood import (
    angles,
    given_likelihood,
    gold,
    likelihood,
    mean_cosine,
    token_entropy,
    token_logprobs,
    token_top,
    understood,
)
from gradus.models.measures.principles import entailed
from gradus.models.measures.vectors import embedding
from gradus.models.measuring import MeasureError, Model
from gradus.models.policy import Policy, load_policy
from gradus.tasks.preflight.checks import SAMPLES

PROMPT, LONG = [[5, 6, 7], [8, 9], [3, 4, 5, 6]], [[1] * 300, [2], []]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(SAMPLES / "policy")


def logits_of(policy: Policy, context: list[int], target: list[int]) -> torch.Tensor:
    """Logits (L, V) before the target's tokens, by one forward pass over one unpadded row."""
    with torch.no_grad():
        return policy.model(input_ids=torch.tensor([context + target])).logits[0, len(context) - 1 : -1].double()


def plain(policy: Policy, context: list[int], target: list[int]) -> tuple[list[float], list[float]]:
    """Log-probs and entropies of the target's tokens at temperature 1."""
    logp = torch.log_softmax(logits_of(policy, context, target), -1)
    return logp[range(len(target)), target].tolist(), (-(logp.exp() * logp).sum(-1)).tolist()


@pytest.mark.parametrize("micro_tokens", [1, 8, 16_384])
def test_log_probs_and_entropies_are_those_of_a_plain_forward_pass(policy: Policy, micro_tokens: int) -> None:
    targets, done = [[4], [7, 7, 2], [9, 1]], []
    found = Model(policy, micro_tokens=micro_tokens, on_rows=done.append).logprobs(PROMPT, targets)
    for row, (context, target) in enumerate(zip(PROMPT, targets, strict=True)):
        logp, entropy = plain(policy, context, target)
        assert found.logp[row] == pytest.approx(logp, abs=1e-4)
        assert found.entropy[row] == pytest.approx(entropy, abs=1e-4)
        assert found.mean_logp[row] == pytest.approx(np.mean(logp), abs=1e-4)
        assert found.mean_prob[row] == pytest.approx(np.mean(np.exp(logp)), abs=1e-4)
        assert found.mean_entropy[row] == pytest.approx(np.mean(entropy), abs=1e-4)
    assert sum(done) == 3


@pytest.mark.parametrize("micro_tokens", [1, 9, 16_384])
@pytest.mark.parametrize("temperature", [0.7, [0.5, float("nan"), 0.0]])
def test_quantities_at_a_temperature_are_those_of_a_plain_forward_pass(
    policy: Policy, micro_tokens: int, temperature: Any
) -> None:
    targets = [[4], [7, 7, 2], [9, 1]]
    model = Model(policy, micro_tokens=micro_tokens)
    found = model.logprobs(PROMPT, targets, temperature=temperature, logsumexp=True, top=3)
    for row, (context, target) in enumerate(zip(PROMPT, targets, strict=True)):
        at = np.nan_to_num(np.broadcast_to(temperature, 3)[row], nan=1.0) or 1.0  # greedy is read at temperature 1
        logits = logits_of(policy, context, target) / at
        logp = torch.log_softmax(logits, -1)
        likely = logp.topk(3)
        assert found.logp[row] == pytest.approx(logp[range(len(target)), target].tolist(), abs=1e-4)
        assert found.entropy[row] == pytest.approx((-(logp.exp() * logp).sum(-1)).tolist(), abs=1e-4)
        assert found.logsumexp[row] == pytest.approx(logits.exp().sum(-1).log().tolist(), abs=1e-4)
        assert found.top_ids[row].tolist() == likely.indices.tolist()
        assert found.top_logp[row] == pytest.approx(likely.values.numpy(), abs=1e-4)


def test_what_nobody_asks_for_is_not_there_and_what_is_not_measured_has_nothing_of_it(policy: Policy) -> None:
    model = Model(policy)
    plainly = model.logprobs([[5]], [[3]])
    assert [len(each) for each in (plainly.logp, plainly.logsumexp, plainly.top_ids, plainly.top_logp)] == [1, 0, 0, 0]
    for contexts in ([[], [5]], [[], []]):
        found = model.logprobs(contexts, [[3], [4]], logsumexp=True, top=2)
        lengths = [0, len(contexts[1])]
        assert [len(found.logsumexp[row]) for row in range(2)] == lengths
        assert [found.top_ids[row].shape for row in range(2)] == [(length, 2) for length in lengths]
    with pytest.raises(MeasureError, match="the model has 23 tokens, and the 24 most likely are asked for"):
        model.logprobs([[5]], [[3]], top=24)
    for temperature in (-1.0, float("inf")):
        with pytest.raises(MeasureError, match="a temperature is neither 0 nor a positive number"):
            model.logprobs([[5]], [[3]], temperature=temperature)


def test_what_does_not_fit_is_not_measured_and_foreign_tokens_are_refused(policy: Policy) -> None:
    model = Model(policy)
    found = model.logprobs([*LONG, [5]], [[3], [4], [4], []])
    assert [len(found.logp[row]) for row in range(4)] == [0, 1, 0, 0]
    assert np.isnan(found.mean_logp).tolist() == [True, False, True, True]
    assert np.isnan(model.logprobs([[]], [[3]]).mean_entropy).all()
    lists = Lists(np.array([5, 6, 7]), np.array([0, 2, 3]))  # columns of rows are taken as they are
    assert len(model.logprobs(lists, lists).logp) == 2
    with pytest.raises(MeasureError, match="token 99999 is none of the model's"):
        model.logprobs([[5]], [[99_999]])
    with pytest.raises(MeasureError, match="token -1 is none of the model's"):
        model.hidden([[5, -1]], len)
    with pytest.raises(MeasureError, match="there are 1 contexts and 2 targets"):
        model.logprobs([[5]], [[3], [4]])


@pytest.mark.parametrize(("layer", "micro_tokens"), [(-1, 4), (1, 16_384)])
def test_hidden_states_are_those_of_unpadded_rows(policy: Policy, layer: int, micro_tokens: int) -> None:
    model = Model(policy, micro_tokens=micro_tokens)
    found = model.hidden([*PROMPT, [], [1] * 300], lambda states: states.mean(0), layer)
    for row, tokens in enumerate(PROMPT):
        with torch.no_grad():
            each = policy.model(input_ids=torch.tensor([tokens]), output_hidden_states=True).hidden_states[layer][0]
        assert found[row] == pytest.approx(each.mean(0).numpy(), abs=1e-4)
    assert np.isnan(found[3:]).all()
    assert found.shape == (5, policy.model.config.hidden_size)
    assert np.isnan(model.hidden([[]], len)).tolist() == [True]


def test_the_mean_cosine_is_over_pairs_of_tokens() -> None:
    # Pairs of (1,0), (0,2), (3,0): 0, 1 and 0.
    assert mean_cosine(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])) == pytest.approx(1 / 3)
    assert mean_cosine(np.array([[1.0, 0.0], [-1.0, 0.0]])) == pytest.approx(-1.0)
    assert mean_cosine(np.array([[0.5, 0.5]])) == 1.0


def test_measures_of_rollouts_and_problems(policy: Policy) -> None:
    model = Model(policy)
    rows = Rows({"prompt_tokens": [[5, 6], [7]], "completion_tokens": [[8, 9], [4]]})
    (one, _), (other, entropy) = plain(policy, [5, 6], [8, 9]), plain(policy, [7], [4])
    found = likelihood(rows, model)
    assert found["logp"] == pytest.approx([np.mean(one), np.mean(other)], abs=1e-4)
    assert token_entropy(rows, model)["tokens"][1] == pytest.approx(entropy, abs=1e-4)
    logits = logits_of(policy, [5, 6], [8, 9]) / 0.5
    cooler = token_logprobs(rows, model, temperature=0.5)
    assert cooler["logp"][0] == pytest.approx(torch.log_softmax(logits, -1)[range(2), [8, 9]].tolist(), abs=1e-4)
    assert cooler["logsumexp"][0] == pytest.approx(logits.logsumexp(-1).tolist(), abs=1e-4)
    likely, top = torch.log_softmax(logits, -1).topk(3), token_top(rows, model, k=3, temperature=0.5)
    assert top["ids"][0].tolist() == likely.indices.flatten().tolist()  # place by place
    assert top["logp"][0] == pytest.approx(likely.values.flatten().tolist(), abs=1e-4)
    problems: dict[str, Any] = {"question": ["3 + 4 ="] * 3, "messages": [None] * 3}
    texts = {"solution": ["3 + 4 = 7", None, None], "answer": ["7", "7", None]}
    prompt, (solution, answer) = model.prompts(["3 + 4 ="])[0], model.tokens(["3 + 4 = 7", "7"])
    expected = [np.mean(plain(policy, prompt, target)[0]) for target in (solution, answer)]
    assert gold(Rows({**problems, **texts}), model)["logp"][:2] == pytest.approx(expected, abs=1e-4)
    assert np.isnan(gold(Rows({**problems, **texts}), model)["entropy"][2])
    given: dict[str, Any] = {f"problem.{name}": values for name, values in problems.items()}
    found = given_likelihood(Rows({**given, "text": ["7", "3 + 4 = 7", ""]}), model)
    assert found["logp"][:2] == pytest.approx(expected[::-1], abs=1e-4)
    assert np.isnan(found["entropy"]).tolist() == [False, False, True]
    assert angles(Rows(problems), model)["concentration"] == pytest.approx(
        [model.hidden([prompt], mean_cosine)[0]] * 3, abs=1e-5
    )


def test_the_answer_is_asked_after_the_reasoning_before_its_last_mention() -> None:
    asked: dict[str, Any] = {}

    def logprobs(contexts: list[list[str]], targets: list[list[str]]) -> SimpleNamespace:
        asked.update(contexts=["".join(each) for each in contexts], targets=targets)
        return SimpleNamespace(mean_prob=np.array([0.5, 0.25]))

    model: Any = SimpleNamespace(
        prompts=lambda questions, _: [[*each, "\n"] for each in questions],
        tokens=lambda texts: [[*each] for each in texts],
        logprobs=logprobs,
    )
    rows = Rows(
        {
            "completion": ["3 + 4 is 7.\n#### 7", "no idea"],
            "problem.question": ["3 + 4", "1 + 1"],
            "problem.messages": [None, None],
            "problem.answer": ["7", "2"],
        }
    )
    assert understood(rows, model)["score"].tolist() == [0.5, 0.25]
    assert asked == {"contexts": ["3 + 4\n3 + 4 is 7.\n#### ", "1 + 1\nno idea"], "targets": [["7"], ["2"]]}


def test_the_embedding_of_a_problem_is_its_mean_hidden_state(policy: Policy) -> None:
    model, long = Model(policy), " ".join(["7"] * 1000)
    found = embedding(Rows({"question": ["3 + 4 =", long, "5 ="], "messages": [None] * 3}), model)["vector"]
    prompts = model.prompts(["3 + 4 =", "5 ="])
    for prompt, vector in zip(prompts, (found[0], found[2]), strict=True):
        with torch.no_grad():
            states: Any = policy.model(input_ids=torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1]
        assert vector == pytest.approx(states[0].double().mean(0).numpy(), abs=1e-4)
    assert found[1] is None


def test_how_much_likelier_yes_is_than_no_behind_an_answer_and_a_principle(policy: Policy) -> None:
    rows = Rows(
        {
            "completion": ["3", None, "4", "1" * 300],
            "problem.question": ["1 + 2 =", "1 + 2 =", None, "1 + 2 ="],
            "problem.messages": [None, None, [{"role": "user", "content": "2 + 2 ="}], None],
        }
    )
    words = {"yes": "7", "no": "85", "template": "{question}{answer}-{principle}"}
    found = entailed(rows, Model(policy), principles=("12", "9"), **words)["value"]
    encode = policy.tokenizer.encode

    def expected(text: str) -> float:
        sums = [sum(plain(policy, encode(text + "\n"), encode(word))[0]) for word in ("7", "85")]
        return sums[0] - sums[1]

    of_first = (expected("1 + 2 =3-12") + expected("1 + 2 =3-9")) / 2
    of_third = (expected("2 + 2 =4-12") + expected("2 + 2 =4-9")) / 2
    assert found == pytest.approx([of_first, np.nan, of_third, np.nan], abs=1e-4, nan_ok=True)
    asked = entailed(rows, Model(policy))["value"]  # our prompt is in letters that this policy does not know
    assert np.isnan(asked).tolist() == [False, True, False, True]
    nothing = Rows({"completion": [None], "problem.question": ["1 ="], "problem.messages": [None]})
    assert np.isnan(entailed(nothing, Model(policy))["value"]).tolist() == [True]
