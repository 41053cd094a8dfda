"""Answers as another hand writes them, and with one digit changed: for golds of real data."""

import random
import re
from collections.abc import Callable, Iterator
from fractions import Fraction

_FRACTION = re.compile(r"\\frac\{(-?\d+)\}\{(\d+)\}")


def _decimal(answer: str) -> str | None:
    """Return a fraction that ends as a decimal."""
    match = re.fullmatch(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}", answer)
    if match is None:
        return None
    value = Fraction(int(match[2]), int(match[3]))
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return f"{match[1]}{float(value)}" if rest == 1 and value.denominator < 10**4 else None


def _if_plain(change: Callable[[str], str]) -> Callable[[str], str | None]:
    return lambda answer: change(answer) if re.fullmatch(r"-?\d+", answer) else None


FORMS: dict[str, Callable[[str], str | None]] = {
    "dfrac": lambda a: a.replace(r"\frac", r"\dfrac") if r"\frac" in a else None,
    "tfrac": lambda a: a.replace(r"\frac", r"\tfrac") if r"\frac" in a else None,
    "a stroke": lambda a: _FRACTION.sub(r"\1/\2", a) if re.fullmatch(r"-?\\frac\{\d+\}\{\d+\}", a) else None,
    "a decimal": _decimal,
    "a period": lambda a: None if a.endswith(".") else f"{a}.",
    "blanks": lambda a: f"  {a} ",
    "dollars": lambda a: f"${a}$",
    "a thin space": lambda a: f"\\,{a}\\,",
    "left and right": lambda a: (
        a.replace("(", r"\left(").replace(")", r"\right)") if "(" in a and "left" not in a else None
    ),
    "no left and right": lambda a: a.replace(r"\left", "").replace(r"\right", "") if r"\left" in a else None,
    "a point and a nought": _if_plain(lambda a: f"{a}.0"),
    "a bold hand": _if_plain(lambda a: rf"\mathbf{{{a}}}"),
    "x =": _if_plain(lambda a: f"x = {a}"),
    "degrees": lambda a: a.replace(r"^\circ", r"^{\circ}") if r"^\circ" in a else None,
    "commas": _if_plain(lambda a: f"{int(a):,}"),
}


def rewritten(answer: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each form that an answer can take, and the answer in it."""
    for name, form in FORMS.items():
        found = form(answer)
        if found is not None and found != answer:
            yield name, found


def perturbed(answer: str, rng: random.Random) -> str | None:
    """Return the answer with another digit in one place; None if it has none."""
    places = [match.start() for match in re.finditer(r"\d", answer)]
    if not places:
        return None
    at = rng.choice(places)
    digit = (int(answer[at]) + rng.randrange(1, 10)) % 10
    return f"{answer[:at]}{digit}{answer[at + 1 :]}"
