"""Rewards of methods for screens and views, written apart from Gradus' own: `(problem, completion) -> reward`."""

import re

from tests.e2e.methods.made import Row
from tests.e2e.methods.rewards import is_box, last, overlap, read


def gui_r1(problem: Row, said: str) -> float:
    """GUI-R1: 0.8 of the action as a whole, 0.2 of the tags."""
    inside = re.fullmatch(r"<think>[^<]*</think>\s*<answer>(.*)</answer>\s*", said, re.DOTALL)
    return 0.8 * right(problem["action"], said) + 0.2 * float(inside is not None and is_object(inside[1]))


def btl_ui(problem: Row, said: str) -> float:
    """BTL-UI: 0.6 of the action, 0.3 of the regions, 0.1 of the tags."""
    form = re.fullmatch(r"<blink>(.*)</blink>\s*<think>[^<]*</think>\s*<link>(.*)</link>\s*", said, re.DOTALL)
    blink = re.search("<blink>(.*?)</blink>", said, re.DOTALL)
    regions, box, value = read(blink[1]) if blink else None, problem["action"]["box"], 0.0
    if isinstance(regions, list) and all(map(is_box, regions)):
        near = [overlap(one, other) for at, one in enumerate(regions) for other in regions[:at]]
        value = float(max(near, default=0.0) < 0.5 and max((overlap(one, box) for one in regions), default=0.0) > 0.5)
    return 0.6 * right(problem["action"], said) + 0.3 * value + 0.1 * float(form is not None and is_object(form[2]))


def right(gold: Row, said: str) -> float:
    """The type and its place; of a text half of the words, as F1."""
    behind = re.sub(r".*</think>", "", said, flags=re.DOTALL)
    found = read(behind[behind.find("{") : behind.rfind("}") + 1])
    if not isinstance(found, dict) or found.get("action") != gold["action"]:
        return 0.0
    if "text" in gold:
        ours, theirs = ({*side["text"].split()} for side in (found, gold))
        precision, recall = len(ours & theirs) / len(ours), len(ours & theirs) / len(theirs)
        return float(precision + recall > 0 and 2 * precision * recall / (precision + recall) >= 0.5)
    (x, y), (left, top, right_, bottom) = found["point"], gold["box"]
    return float(left <= x <= right_ and top <= y <= bottom)


def is_object(said: str) -> bool:
    return said.strip().startswith("{") and said.strip().endswith("}")


def mico(problem: Row, said: str) -> float:
    """MiCo: 1 if all three comparisons are right, and half for the mark."""
    return float(last(said) == problem["answer"]) + 0.5 * ("####" in said)
