r"""Small tasks of ten kinds, each with a level, a worked solution and what its reward needs; drawn from a generator.

row("dates", 2, np.random.default_rng(0))
{"question": "Month 7 months after 2021-11\\n", "answer": "2022-06", "solution": "#### 2022-06", "domain": "dates/2"}
"""

import itertools
import json
from collections.abc import Callable

import numpy as np

Row = dict[str, object]
Made = tuple[str, str | None, str, dict[str, object]]
"""Question, answer, worked solution, and what stands in `extra`."""

LESSON_LEVELS = (1, 2, 3)
LEVELS = {"tables": (3, 4, 5), "translation": (4, 5, 6)}
"""Levels of the problems of a kind, if the policy learns those of its lessons too well for rewards to vary."""
NAMES = ("ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal", "ida", "joe", "kim", "leo", "max", "ned", "ola", "pam")
CITIES = ("rome", "oslo", "bern", "lima", "cork", "nice", "york", "kiel", "pisa", "graz")
WORDS = (
    *("sun", "moon", "tree", "rain", "wind", "lake", "hill", "bird", "fish", "road", "star", "snow", "fire", "leaf"),
    *("rock", "sand", "wave", "boat", "wolf", "bear", "song", "door", "gold", "iron", "milk", "salt", "corn", "rose"),
)
DICTIONARY = {
    "red": "rubra",
    "big": "magna",
    "old": "vetus",
    "new": "nova",
    "good": "bona",
    "dark": "obscura",
    "house": "domus",
    "dog": "canis",
    "cat": "feles",
    "king": "rex",
    "sea": "mare",
    "city": "urbs",
    "tree": "arbor",
    "sees": "videt",
    "has": "habet",
    "loves": "amat",
    "makes": "facit",
    "finds": "invenit",
    "holds": "tenet",
    "and": "et",
    "not": "non",
    "here": "hic",
    "today": "hodie",
    "always": "semper",
    "never": "numquam",
}


def _some(rng: np.random.Generator, among: tuple[str, ...], count: int) -> list[str]:
    return [str(word) for word in rng.choice(among, count, replace=False)]


def _number(rng: np.random.Generator, level: int) -> int:
    return int(rng.integers(1, (10, 100, 1000)[level - 1]))


def choice(level: int, rng: np.random.Generator) -> Made:
    """The largest of four numbers, by its letter."""
    numbers = [int(n) for n in rng.choice(np.arange(1, 10 ** (level + 1)), 4, replace=False)]
    wanted = "ABCD"[numbers.index(max(numbers))]
    options = " ".join(f"{letter}) {number}" for letter, number in zip("ABCD", numbers, strict=True))
    return f"Largest? {options}\n", wanted, f"{max(numbers)} is the largest.\n#### {wanted}", {}


def records(level: int, rng: np.random.Generator) -> Made:
    """A line of facts as a JSON object."""
    facts = {"name": _some(rng, NAMES, 1)[0], "age": _number(rng, 2), "city": _some(rng, CITIES, 1)[0]}
    facts |= {"pets": _some(rng, WORDS, int(rng.integers(1, 4)))} if level > 1 else {}
    facts |= {"home": {"street": _some(rng, WORDS, 1)[0], "number": _number(rng, 2)}} if level > 2 else {}
    shown = ", ".join(f"{key} {_plain(value)}" for key, value in facts.items())
    return f"As JSON: {shown}\n", None, json.dumps(facts), {"record": facts}


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {held}" for key, held in value.items())
    return " and ".join(value) if isinstance(value, list) else str(value)


def tables(level: int, rng: np.random.Generator) -> Made:
    """A query about a small table."""
    names = _some(rng, NAMES, 3 + min(level, 3))
    rows = [[name, _number(rng, 2), _some(rng, CITIES, 1)[0]] for name in names]
    name, limit, city = names[int(rng.integers(len(names)))], _number(rng, 2), rows[0][2]
    asked = {
        f"age of {name}": f"select age from t where name = '{name}'",
        "sum of age": "select sum(age) from t",
        "number of rows": "select count(*) from t",
        f"name with age over {limit}": f"select name from t where age > {limit}",
        f"name in {city}": f"select name from t where city = '{city}'",
        f"largest age in {city}": f"select max(age) from t where city = '{city}'",
        "name by age": "select name from t order by age",
        f"number of rows with age over {limit}": f"select count(*) from t where age > {limit}",
        f"sum of age in {city}": f"select sum(age) from t where city = '{city}'",
    }
    further = {
        f"name in {city} with age over {limit}": f"select name from t where city = '{city}' and age > {limit}",
        f"largest age with age under {limit}": f"select max(age) from t where age < {limit}",
        f"number of rows in {city}": f"select count(*) from t where city = '{city}'",
        "smallest age": "select min(age) from t",
        f"city of {name}": f"select city from t where name = '{name}'",
        f"sum of age over {limit} in {city}": f"select sum(age) from t where age > {limit} and city = '{city}'",
    }
    words, query = list((asked | further).items())[int(rng.integers(max(0, 3 * (level - 3)), 3 * level))]
    shown = "; ".join(f"{name} {age} {city}" for name, age, city in rows)
    held = {"t": {"columns": ["name", "age", "city"], "rows": rows}}
    return f"Table t(name, age, city): {shown}\nSQL: {words}\n", query, f"```sql\n{query}\n```", {"tables": held}


def constraints(level: int, rng: np.random.Generator) -> Made:
    """Words under constraints that code can check."""
    count = 2 + level + int(rng.integers(3))
    words = _some(rng, WORDS, count)
    first, second = _some(rng, tuple(words), 2)
    asked: list[dict[str, object]] = [{"num_words": count}, {"contains": first}, {"contains": second}]
    text, shown = " ".join(words), f"{count} words with {first} and {second}"
    if level > 1:
        last = words[-1]
        asked, shown = [*asked, {"ends_with": last}], f"{shown}, {last} at the end"
    if level > 2:
        text, asked, shown = text.upper(), [*asked, {"upper_case": True}], f"{shown}, in capitals"
    return f"Write {shown}\n", None, text, {"constraints": asked}


def sorting(level: int, rng: np.random.Generator) -> Made:
    """Numbers in order, or names by their numbers."""
    size = 2 + level + int(rng.integers(2))
    numbers = [int(n) for n in rng.choice(np.arange(1, 10 if level == 1 else 100), size, replace=False)]
    if rng.random() < 0.5:
        question, ordered = f"Sort {' '.join(map(str, numbers))}\n", list(map(str, sorted(numbers)))
    else:
        names = _some(rng, NAMES, size)
        pairs = sorted(zip(numbers, names, strict=True), reverse=True)
        shown = ", ".join(f"{name} {number}" for name, number in zip(names, numbers, strict=True))
        question, ordered = f"Rank {shown}\n", [name for _, name in pairs]
    return question, None, f"#### {', '.join(ordered)}", {"items": ordered}


def dates(level: int, rng: np.random.Generator) -> Made:
    """A month some months after another."""
    begin, later = int(rng.integers(1990 * 12, 2030 * 12)), int(rng.integers(1, (6, 18, 60)[level - 1]))
    said, wanted = (f"{month // 12:04}-{month % 12 + 1:02}" for month in (begin, begin + later))
    return f"Month {later} months after {said}\n", wanted, f"#### {wanted}", {}


def programs(level: int, rng: np.random.Generator) -> Made:
    """A program of a few lines, with tests of its input and output."""
    k, word = int(rng.integers(2, 60)), _some(rng, WORDS, 1)[0]
    n, line, pair = "n = int(input())\n", "s = input()\n", "a, b = map(int, input().split())\n"
    asked: tuple[tuple[str, str, Callable[[str], object]], ...] = (
        (f"read a number, print it plus {k}", f"{n}print(n + {k})", lambda x: int(x) + k),
        (f"read a number, print it times {k}", f"{n}print(n * {k})", lambda x: int(x) * k),
        (f"read a line, print it {k} times", f"{line}print(s * {k})", lambda x: x * k),
        (f"read a number, print its remainder by {k}", f"{n}print(n % {k})", lambda x: int(x) % k),
        ("read a line, print it reversed", f"{line}print(s[::-1])", lambda x: x[::-1]),
        (f"read a line, print its first {k} letters", f"{line}print(s[:{k}])", lambda x: x[:k]),
        (
            f"read two numbers, print their sum times {k}",
            f"{pair}print((a + b) * {k})",
            _pair(lambda a, b: (a + b) * k),
        ),
        ("read two numbers, print the larger", f"{pair}print(max(a, b))", _pair(max)),
        (f"read a line, print how often {word} is in it", f"{line}print(s.count('{word}'))", lambda x: x.count(word)),
    )
    at = int(rng.integers(3 * level))
    words, code, right = asked[at]
    inputs = [_input(words, word, rng) for _ in range(4)]
    tests = {"inputs": inputs, "outputs": [str(right(each)) for each in inputs]}
    return f"Python: {words}\n", None, f"```python\n{code}\n```", {"tests": tests}


def _pair(function: Callable[[int, int], int]) -> Callable[[str], int]:
    return lambda text: function(*map(int, text.split()))


def _input(words: str, word: str, rng: np.random.Generator) -> str:
    if "two numbers" in words:
        return f"{_number(rng, 2)} {_number(rng, 2)}"
    if "a number" in words:
        return str(_number(rng, 3))
    return " ".join([word, *_some(rng, WORDS, 2), word][int(rng.integers(2)) :])


def sat(level: int, rng: np.random.Generator) -> Made:
    """An assignment that satisfies some clauses of two or three literals."""
    num = level + 2
    while True:
        clauses = [_clause(num, rng) for _ in range(num)]
        solutions = [
            bits
            for bits in itertools.product((0, 1), repeat=num)
            if all(any(bits[abs(each) - 1] == (each > 0) for each in clause) for clause in clauses)
        ]
        if solutions:
            bits = solutions[int(rng.integers(len(solutions)))]
            shown = "; ".join(" or ".join(f"{'not ' if each < 0 else ''}x{abs(each)}" for each in c) for c in clauses)
            said = ", ".join(f"x{at} = {bit}" for at, bit in enumerate(bits, 1))
            return f"Satisfy: {shown}\n", None, f"#### {said}", {"clauses": clauses}


def _clause(num: int, rng: np.random.Generator) -> list[int]:
    variables = rng.choice(num, 2, replace=False) + 1
    return [int(each) * int(rng.choice((-1, 1))) for each in variables]


def translation(level: int, rng: np.random.Generator) -> Made:
    """A sentence word by word from a fixed list."""
    words = _some(rng, tuple(DICTIONARY), 2 * level + int(rng.integers(2)))
    wanted = " ".join(DICTIONARY[word] for word in words)
    return f"Translate: {' '.join(words)}\n", wanted, wanted, {}


def boxes(level: int, rng: np.random.Generator) -> Made:
    """The corners of a box."""
    x, y, width, height = (_number(rng, min(level, 2)) for _ in range(4))
    box = [x, y, x + width, y + height]
    place = f"x {x}, y {y}, width {width}, height {height}"
    if level > 2:
        place, box = f"{place}, moved right by {width}", [x + width, y, x + 2 * width, y + height]
    return f"Box at {place}\n", None, str(box), {"box": box}


KINDS: dict[str, Callable[[int, np.random.Generator], Made]] = {
    each.__name__: each
    for each in (choice, records, tables, constraints, sorting, dates, programs, sat, translation, boxes)
}


def row(kind: str, level: int, rng: np.random.Generator) -> Row:
    """Return one problem of a kind and a level."""
    question, answer, solution, extra = KINDS[kind](level, rng)
    return {"question": question, "answer": answer, "solution": solution, "domain": f"{kind}/{level}", **extra}


def rows(kind: str, count: int, rng: np.random.Generator, known: set[str], *, lessons: bool = False) -> list[Row]:
    """Return problems of all levels in turn, none of whose questions is known; but for lessons none occurs twice."""
    levels = LESSON_LEVELS if lessons else LEVELS.get(kind, LESSON_LEVELS)
    found: list[Row] = []
    while len(found) < count:
        made = row(kind, levels[len(found) % len(levels)], rng)
        if made["question"] in known:
            continue
        if not lessons:
            known.add(str(made["question"]))
        found.append(made)
    return found
