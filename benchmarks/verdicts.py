"""False verdicts of `math` and `numeric` on real golds: in other written forms, and with one digit changed.

    python benchmarks/verdicts.py                          # MATH and GSM8K of ../shared/data
    python benchmarks/verdicts.py --math-verify FOLDER     # Math-Verify's own test cases too, from a checkout of it

A gold with another digit is another answer; one in another form is the same. Cases on which `math` and Math-Verify's
tests differ are printed.
"""

import argparse
import importlib
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from gradus.models.judging.pool import JudgePool  # noqa: E402 - the checkout comes first
from gradus.models.rewards import resolve  # noqa: E402
from gradus.models.rewards.text import last_box  # noqa: E402
from tests.models.rewards.written_forms import perturbed, rewritten  # noqa: E402

SHARED = ROOT.parent / "shared" / "data"
MODULES = ("all", "boxed", "numina_cases", "open_thoughts", "yujianll", "strict", "configs", "string_extraction")
CHARS = 90


def judged(name: str, pairs: list[tuple[str, str]]) -> list[str]:
    """Return the outcome of each gold and completion."""
    with JudgePool(resolve(name, {}, max_chars=50_000), num_workers=2, item_timeout_s=10) as pool:
        found = pool.judge([{"completion": completion, "answer": gold} for gold, completion in pairs])
    return [each.verdict.outcome for each in found]


def counted(title: str, name: str, pairs: list[tuple[str, str]]) -> None:
    """Print the outcomes of some pairs."""
    print(f"{title}, {name}: {len(pairs):,} pairs, {dict(Counter(judged(name, pairs)))}")


def real_golds() -> None:
    """Judge golds against their solutions, against themselves in other forms, and with another digit."""
    math = [json.loads(line) for line in (SHARED / "math" / "test.jsonl").read_text().splitlines()]
    golds = [(last_box(row["solution"]) or "", row["solution"]) for row in math]
    counted("MATH, worked solutions", "math", golds)
    forms = [(gold, f"\\boxed{{{text}}}") for gold, _ in golds for _, text in rewritten(gold)]
    counted("MATH, other forms", "math", forms)
    rng = random.Random(0)
    others = [(gold, f"\\boxed{{{text}}}") for gold, _ in golds if (text := perturbed(gold, rng))]
    counted("MATH, another digit", "math", others)
    for name in ("math", "numeric"):
        pairs = list[tuple[str, str]]()
        for part in ("train", "test"):
            for line in (SHARED / "gsm8k" / f"{part}.jsonl").read_text().splitlines():
                solution = json.loads(line)["answer"]
                pairs.append((solution.rpartition("#### ")[2].replace(",", ""), solution))
        counted("GSM8K, worked solutions", name, pairs)
        others = [(gold, f"#### {perturbed(gold, rng)}") for gold, _ in pairs]
        counted("GSM8K, another digit", name, others)


def cases_of(folder: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield gold, prediction and the expected verdict of every case of Math-Verify's tests."""
    sys.path.insert(0, str(folder))
    for module in MODULES:
        for function in vars(importlib.import_module(f"tests.test_{module}")).values():
            for mark in getattr(function, "pytestmark", ()):
                if mark.name == "parametrize":
                    yield from _of_mark(*mark.args[:2])


def _of_mark(names: Any, values: Any) -> Iterator[tuple[str, str, bool]]:
    keys = [each.strip() for each in (names.split(",") if isinstance(names, str) else names)]
    if {"gold", "pred", "expected"} <= set(keys):
        for value in values:
            case = dict(zip(keys, value, strict=True))
            if isinstance(case["gold"], str):
                yield case["gold"], case["pred"], bool(case["expected"])


def math_verify(folder: Path) -> None:
    """Judge Math-Verify's own cases; print those on which the verdicts differ."""
    del sys.modules["tests"]
    cases = list(cases_of(folder))
    found = judged("math", [(gold, said) for gold, said, _ in cases])
    other = [case for case, outcome in zip(cases, found, strict=True) if (outcome == "correct") is not case[2]]
    print(f"Math-Verify's tests: {len(cases)} cases, {len(cases) - len(other)} verdicts as there")
    for gold, said, expected in other:
        print(f"  {'right' if expected else 'wrong'} there: {gold[:CHARS]!r} and {said[:CHARS]!r}")


def main() -> None:
    """Judge what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--math-verify", type=Path)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if SHARED.exists():
        real_golds()
    if options.math_verify:
        math_verify(options.math_verify)


if __name__ == "__main__":
    main()
