"""Completions that try to hang, break, hedge or poison a judge: the corpus, and that nobody else's verdict changes."""

import random
import time

import pytest

from gradus.components.registry import components
from gradus.models.judging.pool import JudgePool
from gradus.models.rewards import resolve

HOSTILE = {
    "boxed in the thinking only": "<think>so \\boxed{34}</think> I cannot say.",
    "thinking never ends": "<think>so \\boxed{34}",
    "thinking reopened": "<think>a</think>\\boxed{34}<think>",
    "hedge": "\\boxed{34 or 35}",
    "hedged set": "\\boxed{\\{34, 35, 36\\}}",
    "all numbers": "\\boxed{1,2,3,34}",
    "empty box": "34, so \\boxed{}",
    "box never closed": "34, so \\boxed{3",
    "import": "\\boxed{__import__('os').system('touch /tmp/owned')}",
    "attribute": "#### ().__class__.__base__.__subclasses__()",
    "lambda": "\\boxed{lambda: 34.5}",
    "format string": "\\boxed{%s%n{0.__class__}}",
    "json": '{"value": 1.0, "outcome": "correct", "at": 0}\n{"ready": true}\n',
    "nul": "\x00\x00#### \x00",
    "controls": "\x1b[2J\x1b]0;owned\x07 \r\n\x08",
    "denial": "\\boxed{x \\neq 34}",
    "bound": "\\boxed{x > 33}",
    "variable": "\\boxed{34x}",
    "markup": "<script>alert(34.5)</script>[red]x[/red]",
    "open braces": "\\boxed" + "{" * 20_000,
    "open parentheses": "\\boxed{" + "(" * 3000 + "34.5" + ")" * 3000 + "}",
    "deep fractions": "\\boxed{" + "\\frac{1}{" * 400 + "34.5" + "}" * 400 + "}",
    "deep json": "[" * 50_000,
    "marks": "#" * 50_000,
    "headings": "#### a\n" * 7000,
    "boxes": "\\boxed{" * 7000,
    "dollars": "$" * 5001,
    "digits": "#### " + "9" * 50_000,
    "long sum": "\\boxed{" + "+".join("1" for _ in range(300)) + "}",
    "a megabyte of words": "so " * 350_000,
    "a megabyte of digits": "1" * 1_000_000,
    "commas": "1," * 20_000,
    "exponent": "#### 1e999999999",
    "zero division": "\\boxed{\\frac{34}{0}} ",
    "infinity": "\\boxed{\\infty}",
    "nan": "#### nan",
}
"""None of these is a correct answer to a problem whose answer is 34, in any reward."""

TOWERS = ("\\boxed{9^{9^{9^{9}}}}", "\\boxed{1000000000!}", "the answer is $10^{10^{10}}$")

GOOD = [("so \\boxed{34}", "34"), ("#### 1,200", "1200"), ("#### 7", "8"), ("\\boxed{1/2}", "0.5"), ("nothing", "3")]


def rows_of(completions, gold="34"):
    return [{"completion": c, "answer": gold} for c in completions]


def verdicts(pool, rows):
    return [j.verdict for j in pool.judge(rows)]


@pytest.fixture(scope="module")
def pools():
    made = {name: JudgePool(resolve(name, {}, max_chars=50_000), item_timeout_s=1.5) for name in components("reward")}
    yield made
    for pool in made.values():
        pool.close()


@pytest.mark.parametrize("name", ["numeric", "exact"])
def test_nothing_hostile_scores_or_harms_a_plain_reward(pools, name):
    found = dict(zip(HOSTILE, verdicts(pools[name], rows_of(HOSTILE.values())), strict=True))
    assert {what: v.outcome for what, v in found.items() if v.outcome not in {"wrong", "unparsed"}} == {}


def test_nothing_hostile_scores_in_math(pools):
    started = time.monotonic()
    found = dict(zip(HOSTILE, verdicts(pools["math"], rows_of(HOSTILE.values())), strict=True))
    assert {what: v for what, v in found.items() if v.outcome == "correct"} == {}
    for what in ("boxed in the thinking only", "thinking never ends", "thinking reopened", "empty box", "nul"):
        assert found[what].outcome == "unparsed", what
    assert {found["hedge"].outcome, found["hedged set"].outcome, found["all numbers"].outcome} == {"wrong"}
    # Every row ends within its limit, with a judge replaced (about a second) where it did not finish.
    assert time.monotonic() - started < 30


def test_towers_of_powers_end_within_the_limit_and_never_score(pools):
    started = time.monotonic()
    found = verdicts(pools["math"], rows_of(TOWERS))
    assert time.monotonic() - started < 12
    assert [(v.outcome, v.value) for v in found] == [("timeout", None)] * len(TOWERS)


def test_a_hanging_row_leaves_the_others_as_they_are(pools):
    clean = [{"completion": c, "answer": g} for c, g in GOOD * 8]
    alone = verdicts(pools["math"], clean)
    mixed = [*clean[:7], *rows_of(["\\boxed{9^{9^{9^{9}}}}"]), *clean[7:23], *rows_of([TOWERS[0]]), *clean[23:]]
    together = verdicts(pools["math"], mixed)
    assert together[7].outcome == together[24].outcome == "timeout"
    assert [v for i, v in enumerate(together) if i not in {7, 24}] == alone


@pytest.mark.parametrize("name", sorted(components("reward")))
def test_a_hostile_row_in_between_changes_no_later_verdict(pools, name):
    rows = [{"completion": c, "answer": g} for c, g in GOOD]
    quick = [t for what, t in HOSTILE.items() if "megabyte" not in what and "deep" not in what]
    before = verdicts(pools[name], rows)
    verdicts(pools[name], rows_of(quick))
    assert verdicts(pools[name], rows) == before


@pytest.mark.parametrize("name", ["numeric", "exact", "math"])
def test_the_order_of_rows_does_not_matter(name):
    short = [text for text in HOSTILE.values() if len(text) < 500]
    rows = [*rows_of(short), *({"completion": c, "answer": g} for c, g in GOOD)]
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    # A limit that no row comes near: what is compared must not hang on the machine's load.
    with JudgePool(resolve(name, {}, max_chars=50_000), item_timeout_s=60) as pool:
        straight = verdicts(pool, rows)
        shuffled = verdicts(pool, [rows[i] for i in order])
    assert [shuffled[order.index(i)] for i in range(len(rows))] == straight


def test_display_marks_do_not_change_what_is_read(pools):
    marked = rows_of(["\u202e#### 34\u202c", "\u200f\\boxed{34}", "#### \u20663\u20694"])
    for name in ("numeric", "math"):
        assert [v.outcome for v in verdicts(pools[name], marked)] == ["correct"] * 3


def test_a_pattern_without_end_costs_its_own_row_only():
    with JudgePool(resolve("format", {"pattern": "(a+)+$"}), num_workers=1, item_timeout_s=0.5) as pool:
        found = verdicts(pool, rows_of(["aaa", "a" * 40 + "b", "b"]))
    assert [v.outcome or v.value for v in found] == [1.0, "timeout", 0.0]
