"""Running checksums: a task on which a hint helps, and a plain policy gradient has nothing to learn from.

A problem is a row of digits. Three sums run over it, all modulo 10 and 0 at first: of each digit d, a += d, b += a,
c += b. A solution has a line `dabc` for each digit; the answer is the last a, b and c. A student of error rate `eta`
writes each of the three sums of a line wrong with that probability, and goes on with what it wrote: of N digits all is
right with probability (1 - eta)^(3 N), and an answer is right by luck in 1 of 1,000.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ANSWER = "{solution}\n#### {answer}"


def solution_of(digits: list[int], rng: np.random.Generator, eta: float = 0.0) -> list[str]:
    """Return a line for each digit as a student of this error rate writes it."""
    a = b = c = 0
    lines: list[str] = []
    for digit in digits:
        a = _written(a + digit, rng, eta)
        b = _written(b + a, rng, eta)
        c = _written(c + b, rng, eta)
        lines.append(f"{digit}{a}{b}{c}")
    return lines


def problems(
    num_problems: int, lengths: tuple[int, ...], rng: np.random.Generator, other: set[str], eta: float = 0.0
) -> Iterator[dict[str, object]]:
    """Yield problems, as many of each number of digits and none of `other`; with `eta` a sloppy solution of each."""
    for index in range(num_problems):
        length = lengths[index % len(lengths)]
        while (digits := rng.integers(0, 10, length).tolist()) and _question(digits) in other:
            pass
        lines = solution_of(digits, rng, eta)
        yield {
            "question": _question(digits),
            "answer": lines[-1][1:],
            "solution": "\n".join(lines),
            "domain": f"checksums/{length}",
        }


def write(file: Path, rows: Iterator[dict[str, object]]) -> set[str]:
    """Write rows as JSON lines, each question once; return the questions."""
    found = {str(row["question"]): row for row in rows}
    file.write_text("".join(json.dumps(row) + "\n" for row in found.values()))
    return set(found)


def _written(total: int, rng: np.random.Generator, eta: float) -> int:
    wrong = int(rng.integers(1, 10)) if rng.random() < eta else 0
    return (total + wrong) % 10


def _question(digits: list[int]) -> str:
    return "".join(map(str, digits)) + "="
