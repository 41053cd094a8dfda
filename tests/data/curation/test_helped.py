"""What help does, counted by hand."""

import pyarrow as pa

from tests.data.curation.tallies import measured

SAID = [{"role": "user", "content": "?"}]
# problem, right, hint level, a prompt of a wave's, origin, parent
ROWS = [
    ("a", False, 0, None, None, None),  # a: never without help, once of two with a hint
    ("a", False, 1, None, None, None),
    ("a", True, 1, None, None, None),
    ("b", True, 0, None, None, None),  # b: solved without help too, and with
    ("b", False, 0, None, "own", None),
    ("b", True, 0, SAID, "guided", None),
    ("c", False, 0, None, None, None),  # c: no help; a given text and a continued rollout are none
    ("c", True, 0, None, "expert", None),
    ("c", True, 0, None, None, "x"),
    ("d", True, 2, None, None, None),  # d: never asked without help
    ("a", None, 1, None, None, None),  # not judged
    ("a", True, 0, None, None, "x"),  # continued
    ("c", True, 0, SAID, "explained", None),  # its prompt stated the answer
]


def table(rows: list[tuple[object, ...]]) -> tuple[pa.Table, pa.Table]:
    names = [str(at) for at in range(len(rows))]
    problem, right, level, messages, origin, parent = zip(*rows, strict=True)
    scores = pa.table({"rollout_id": names, "problem_id": problem, "correct": pa.array(right, pa.bool_())})
    return scores, pa.table(
        {
            "rollout_id": names,
            "hint_level": pa.array(level, pa.int32()),
            "messages": pa.array(messages),
            "origin": pa.array(origin, pa.string()),
            "parent": pa.array(parent, pa.string()),
        }
    ).take(pa.array(range(len(rows))[::-1]))


def test_a_rescued_problem_is_solved_with_help_and_never_without() -> None:
    # With help 2 of 3 of a and b, without it 1 of 3.
    assert measured(*table(ROWS)).help.metrics == {
        "data/rescued_problems": 1.0,
        "data/helped_accuracy": 2 / 3,
        "data/unhelped_accuracy": 1 / 3,
    }


def test_without_help_there_is_no_metric() -> None:
    assert measured(*table(ROWS[6:9])).help.metrics == {}


def test_tokens_of_help_are_those_beyond_the_problems_own_prompt() -> None:
    # Prompts of 3 tokens without help, for a and b; with it 5, 5 (a), 9 (b). That of d, asked one way, counts not.
    scores, rollouts = table(ROWS)
    help_, wave = {1: 5, 2: 50}, 9
    lengths = [wave if said else help_.get(level, 3) for _, _, level, said, _, _ in ROWS][::-1]
    rollouts = rollouts.append_column("prompt_tokens", pa.array([[1] * num for num in lengths], pa.list_(pa.int32())))
    assert measured(scores, rollouts).help.metrics["data/help_tokens"] == (5 - 3) + (5 - 3) + (9 - 3)
    asked_alike = scores.filter(
        pa.array([at != 4 for at in range(len(ROWS))])
    )  # of b one row each way, of a two and one
    assert measured(asked_alike, rollouts).help.metrics["data/help_tokens"] == 2 * 5 - 2 * 3 + 9 - 3
    texts = rollouts.set_column(5, "prompt_tokens", pa.array([[]] * len(ROWS), pa.list_(pa.int32())))
    assert "data/help_tokens" not in measured(scores, texts).help.metrics  # a server that counts none
