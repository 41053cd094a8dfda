"""Rewards of methods by their papers' formulas, counted apart from Gradus' own: `(problem, completion) -> reward`."""

import ast
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import permutations
from math import exp, hypot, log2
from typing import Any

from tests.e2e.methods.kinds import words_of
from tests.e2e.methods.made import Row

Judge = Callable[[Row, str], float | None]
"""Reward of a completion (None: it is left out), by its problem with what is in `extra`, its `row`, and what was
`judged` in the run."""


def parts_of_record(problem: Row, said: str) -> float:
    """RL-Struct: the mean of keys, form, validity and values."""
    wanted, found = problem["record"], read(said)
    if not isinstance(found, dict):
        return 0.0
    keys = sum(key in found for key in wanted) / len(wanted)
    return (keys + 1.0 + 1.0 + sum(found.get(key) == value for key, value in wanted.items()) / len(wanted)) / 4


def read(said: str) -> Any:
    """The JSON of a completion; None if there is none."""
    try:
        return json.loads(said)
    except ValueError:
        return None


def marked(said: str) -> str | None:
    """What stands behind the last mark."""
    return said.rpartition("####")[2].strip().partition("\n")[0] or None if "####" in said else None


def last(said: str) -> str:
    return marked(said) or (said.strip().splitlines() or [""])[-1].strip()


def has(pattern: str, said: str) -> float:
    return float(re.search(pattern, said, re.DOTALL) is not None)


def formed(said: str) -> float:
    return float(marked(said) is not None)


def code_of(said: str) -> str | None:
    """The last block between fences."""
    found = re.findall(r"```\w*\n(.*?)```", said, re.DOTALL)
    return found[-1].strip() if found and found[-1].strip() else None


def patch(problem: Row, said: str) -> float:
    """SWE-RL: the ratio of difflib to the reference, -1 without a block."""
    code = code_of(said)
    return -1.0 if code is None else SequenceMatcher(None, code, problem["answer"].strip(), autojunk=False).ratio()


def parsing(problem: Row, said: str) -> float:
    """ReCode: the same if it parses, else 0; and the form."""
    code = code_of(said)
    try:
        value = 0.0 if code is None else (ast.parse(code), patch(problem, said))[1]
    except SyntaxError:
        value = 0.0
    return value + has("```", said)


def queried(problem: Row, said: str) -> float:
    """Reasoning-Table: 1 if SQLite returns the rows of the gold query; no number is compared with a text."""
    if re.search(r"age\s*[<>=]+\s*'", said):
        return 0.0
    database = sqlite3.connect(":memory:")
    for name, table in problem["tables"].items():
        database.execute(f"create table {name} ({', '.join(table['columns'])})")
        places = ", ".join("?" * len(table["columns"]))
        database.executemany(f"insert into {name} values ({places})", table["rows"])
    try:
        rows = [Counter(database.execute(query).fetchall()) for query in (code_of(said) or "no", problem["answer"])]
    except (sqlite3.Error, sqlite3.Warning):
        return 0.0
    return float(rows[0] == rows[1])


def with_verdict(problem: Row, said: str) -> float:
    """VerIF: half the share of constraints, half the judge's verdict."""
    kinds: Mapping[str, Callable[[Any], bool]] = {
        "num_words": lambda wanted: len(said.split()) == wanted,
        "contains": lambda wanted: wanted in said.lower(),
        "ends_with": lambda wanted: said.strip().lower().endswith(wanted),
        "upper_case": lambda wanted: (said == said.upper()) == wanted,
    }
    met = [kinds[key](wanted) for each in problem["constraints"] for key, wanted in each.items()]
    (verdict,) = (row["reward"] for row in problem["judged"] if problem["row"]["rollout_id"] in row["about"])
    return sum(met) / len(met) / 2 + verdict / 2


def f1(problem: Row, said: str) -> float:
    """SoRFT: F1 of the items."""
    wanted, found = ({each.strip().lower() for each in items} for items in (problem["items"], last(said).split(",")))
    found.discard("")
    hits = len(wanted & found)
    return 2 * hits / (len(wanted) + len(found))


def months(problem: Row, said: str) -> float:
    """Time-R1: exp of the distance in months, which counts more each round; and a tenth for the form."""
    decay = 0.07 + 0.03 * (problem["row"]["round"] - 1) / 99
    dates = re.findall(r"(?<!\d)(\d{4})-(\d{1,2})(?!\d)", last(said))
    dates = [(int(year), int(month)) for year, month in dates if 1 <= int(month) <= 12]
    year, month = map(int, problem["answer"].split("-"))
    apart = abs(12 * (dates[-1][0] - year) + dates[-1][1] - month) if dates else None
    return (0.0 if apart is None else exp(-decay * apart)) + 0.1 * formed(said)


def solved(problem: Row, said: str) -> float:
    """SATURN: 1 if each clause holds."""
    values = {int(name): value == "1" for name, value in re.findall(r"x(\d+) = ([01])\b", last(said))}
    return float(all(any(values.get(abs(x)) == (x > 0) for x in clause) for clause in problem["clauses"]))


def bleu(said: str, reference: str) -> float:
    """Smoothed BLEU of order 4 (Lin and Och 2004)."""
    ours, theirs = said.split(), reference.split()
    if not ours:
        return 0.0
    value = min(1.0, exp(1 - len(theirs) / len(ours)))
    for n in range(1, 5):
        runs = [Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1)) for words in (ours, theirs)]
        value *= ((sum((runs[0] & runs[1]).values()) + 1) / (sum(runs[0].values()) + 1)) ** 0.25
    return value


def gated(problem: Row, said: str) -> float:
    """MT-R1-Zero: form and metric, -3 without the form."""
    return 1.0 + bleu(said, problem["answer"]) if has("^[a-z ]+$", said) else -3.0


def subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    before = [0] * (len(other) + 1)
    for a in one:
        now = [0]
        for at, b in enumerate(other):
            now.append(before[at] + 1 if a == b else max(now[-1], before[at + 1]))
        before = now
    return before[-1]


def terms(problem: Row, said: str) -> float:
    """TAT-R1: half for the terms that occur, half for their order."""
    wanted = problem["terms"]
    found = [word for word in words_of(said) if word in wanted]
    return sum(term in found for term in wanted) / 2 / len(wanted) + subsequence(
        list(dict.fromkeys(found)), list(dict.fromkeys(wanted))
    ) / 2 / len(wanted)


def chain(problem: Row, said: str) -> float:
    """RLVRR: keywords in their order, and the check of the style."""
    (words,) = problem["key_points"][0]
    found = [word for word in words_of(said) if word in words]
    wanted = [word for word in words_of(problem["answer"]) if word in words]
    style = float(problem["constraints"][0]["contains"] in said)
    return subsequence(found, wanted) / max(len(found), len(wanted)) + style


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """IoU of boxes, or of spans, by their lowest and highest coordinates."""
    half = len(one) // 2

    def size(low: Sequence[float], high: Sequence[float]) -> float:
        found = 1.0
        for a, b in zip(low, high, strict=True):
            found *= max(b - a, 0.0)
        return found

    common = size(
        [max(*each) for each in zip(one[:half], other[:half], strict=True)],
        [min(*each) for each in zip(one[half:], other[half:], strict=True)],
    )
    whole = size(one[:half], one[half:]) + size(other[:half], other[half:]) - common
    return common / whole if whole else 0.0


def is_box(value: Any, size: int = 4) -> bool:
    return (
        isinstance(value, list)
        and len(value) == size
        and all(type(each) in (int, float) for each in value)
        and all(a <= b for a, b in zip(value[: size // 2], value[size // 2 :], strict=True))
    )


def located(problem: Row, said: str) -> float:
    """VLM-R1, DocThinker: IoU and form."""
    found = read(said)
    return (overlap(found, problem["box"]) if is_box(found) else 0.0) + has(r"\[.*\]", said)


def near(problem: Row, said: str) -> float:
    """SE-GUI: exp of the distance to the element."""
    found, (left, top, right, bottom) = read(said), problem["box"]
    if is_box(found):
        found = [(found[0] + found[2]) / 2, (found[1] + found[3]) / 2]
    if not (isinstance(found, list) and len(found) == 2):
        return 0.0
    return exp(-hypot(max(left - found[0], 0, found[0] - right), max(top - found[1], 0, found[1] - bottom)) / 50)


def warped(problem: Row, said: str) -> float:
    """MOSS-ChatV: exp of the time warping over the gold states."""
    found, gold = read(said), problem["states"]
    if not (isinstance(found, list) and found and all(type(each) in (int, float) for each in found)):
        return 0.0
    cost = {(-1, -1): 0.0}
    for i, a in enumerate(found):
        for j, b in enumerate(gold):
            ways = [cost[at] for at in ((i - 1, j), (i, j - 1), (i - 1, j - 1)) if at in cost]
            cost[i, j] = abs(a - b) + min(ways)
    return exp(-cost[len(found) - 1, len(gold) - 1] / len(gold))


def matched(problem: Row, said: str) -> float:
    """Perception-R1: the best sum of IoUs of all ways to assign boxes."""
    found, gold = read(said), problem["boxes"]
    if not isinstance(found, list) or not all(map(is_box, found)):
        return 0.0
    filled = [*found, *[[0, 0, 0, 0]] * max(0, len(gold) - len(found))]
    return max(sum(map(overlap, gold, each)) for each in permutations(filled, len(gold))) / len(gold)


def detected(problem: Row, said: str) -> float:
    """VLM-R1: the mean AP over thresholds with the factor for boxes too many, and the form."""
    found, gold = read(said), problem["boxes"]
    if not isinstance(found, list) or not all(map(is_box, found)):
        return has(r"\[.*\]", said)
    total = 0.0
    for least in [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]:
        left, hits = [*gold], list[int]()
        for box in found:
            near = max(left, key=lambda each: overlap(box, each), default=None)
            hits.append(int(near is not None and overlap(box, near) >= least))
            if hits[-1]:
                left.remove(near)
        curve = [(sum(hits[:at]) / len(gold), sum(hits[:at]) / at) for at in range(1, len(hits) + 1)]
        wanted = [number / len(gold) for number in range(1, len(gold) + 1)]
        total += sum(max((p for r, p in curve if r >= recall), default=0.0) for recall in wanted) / len(gold)
    return total / 10 * min(1.0, len(gold) / max(1, len(found))) + has(r"\[.*\]", said)


def spanned(problem: Row, said: str) -> float:
    """VideoChat-R1: IoU of spans, and the form."""
    found = read(said)
    return (overlap(found, problem["span"]) if is_box(found, 2) else 0.0) + has(r"\[.*\]", said)


def graph(problem: Row, said: str) -> float:
    """R1-SGG: the mean of the F1 of nodes and edges, and the form."""
    found, gold = read(said), problem["graph"]
    if not isinstance(found, dict) or {*found} != {"nodes", "edges"}:
        return has(r"\{.*\}", said)

    def score(key: str) -> float:
        ours, theirs = ({json.dumps(each) for each in side[key]} for side in (found, gold))
        return 2 * len(ours & theirs) / (len(ours) + len(theirs))

    return (score("nodes") + score("edges")) / 2 + has(r"\{.*\}", said)


def acted(problem: Row, said: str) -> float:
    """UI-R1: the type, with it the place, and half for the form."""
    found, gold = read(said), problem["action"]
    value = 0.0
    if isinstance(found, dict) and found.get("action") == gold["action"]:
        (x, y), (left, top, right, bottom) = found["point"], gold["box"]
        value = 0.5 + 0.5 * (left <= x <= right and top <= y <= bottom)
    return value + 0.5 * has(r"\{.*\}", said)


def prefix(problem: Row, said: str) -> float:
    """Reinforced Reasoning for Embodied Planning: actions up to the first wrong one."""
    found, gold = read(said), problem["actions"]
    if not isinstance(found, list):
        return 0.0
    right = next((at for at, (a, b) in enumerate(zip(found, gold, strict=False)) if a != b), min(len(found), len(gold)))
    return right / max(len(found), len(gold))


def ranked(problem: Row, said: str) -> float:
    """GroupRank: half NDCG, half the nearness of shares."""
    found, gold = read(said), problem["relevance"]
    if isinstance(found, list) and found and all(isinstance(each, str) for each in found):
        order = [*found, *sorted((name for name in gold if name not in found), key=lambda name: gold[name])]
    elif isinstance(found, dict):
        order = sorted(gold, key=lambda name: (-found[name], gold[name]))
    else:
        return 0.0

    def gain(names: Sequence[str]) -> float:
        return sum((2 ** gold[name] - 1) / log2(at + 2) for at, name in enumerate(names))

    value = gain(order) / gain(sorted(gold, key=lambda name: -gold[name]))
    if isinstance(found, list):
        return value
    shares = [[side[name] / sum(side.values()) for name in gold] for side in (found, gold)]
    return value / 2 + (1 - sum(abs(a - b) for a, b in zip(*shares, strict=True)) / 2) / 2


def called(problem: Row, said: str) -> float:
    """STAR: the soft IoU of at most one call; -1 for a text that is none."""
    found, (gold,) = read(said), problem["calls"]
    if found is None:
        return -1.0 if "{" in said else 0.0
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        return -1.0
    if not found:
        return 0.0
    (call,) = found
    alike = sum(call["arguments"][name] == value for name, value in gold["arguments"].items()) / 2
    return alike / (int(alike == 0) + 1)


def erring(problem: Row, said: str) -> float:
    """BigCharts-R1: 1 less ten times the relative error; and a tenth for the form."""
    numbers, gold = re.findall(r"-?\d+", last(said)), float(problem["answer"])
    error = abs(float(numbers[-1]) - gold) if numbers else None
    value = 0.0 if error is None else float(error == 0) if gold == 0 else max(0.0, 1 - error / abs(gold) / 0.1)
    return value + 0.1 * formed(said)


def relevant(problem: Row, said: str) -> float:
    """R3: 5.12 times the cosine of word counts with the reference, times the share of different runs of three."""
    ours, theirs = (re.findall(r"\w+", text.lower()) for text in (said, problem["answer"]))
    if not ours:
        return 0.0
    every = sorted({*ours, *theirs})
    a, b = ([side.count(word) for word in every] for side in (ours, theirs))
    alike = sum(x * y for x, y in zip(a, b, strict=True)) / hypot(*a) / hypot(*b)
    pieces = re.findall(r"\w+|[^\w\s]+", said)
    runs = [" ".join(pieces[at : at + 3]) for at in range(len(pieces) - 2)]
    return 5.12 * alike * (len(set(runs)) / len(runs) if runs else 1.0)
