r"""Sets of letters: golds and completions that state several right options of a multiple-choice question.

    letters_of("B, C and (D)")         # frozenset("bcd")
    stated_letters("... so the answers are B and D.")

They are read behind the last `####`; else in the boxes of the last line that has any; else behind the last `answers
are`, `answer:`, `options:` ..., on that line or, if it ends there, the next; else in the last line that is not empty.

    letters = [both] letter {, | ; | & | + | and} letter ... [are correct ... | because ...]  |  BD
    letter  = X | (X) | X) | X.

`BD` is in capitals, each once. Anything between letters that does not join them (`or`, `/`, `not`) makes it no set.
"""

import json
import re
import unicodedata

from gradus.models.rewards.judges.exact import normalise
from gradus.models.rewards.text import last_marked, last_match

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
MARKS = re.compile(r"#{4,}")
_MAX_PHRASE_CHARS = 2000

_SAID = re.compile(r"\b(?:answer|choice|option)s?[*_` ]{0,8}(?:is\b|are\b|:|=)[ \t]*:?", re.IGNORECASE)
_LETTER = r"[(\[{]?[a-z][)\]}.:]?"
_JOINT = r" ?(?:[,;] ?(?:and |& ?)?|[&+] ?|and )"
_KIND = r"(?:(?:the )?(?:option|choice|answer|letter)s? )?(?:both )?"
_HEAD = re.compile(rf"{_KIND}[(\[{{]?({_LETTER}(?:{_JOINT}{_LETTER}){{0,25}})(?!\w)")
_LIST = re.compile(
    rf"{_KIND}({_LETTER}(?:{_JOINT}{_LETTER}){{1,25}})"
    r"( are (?:both |all )?(?:the )?(?:correct|right)\b.*|,? (?:because|since|as|for|due|which)\b.*)?",
    re.DOTALL,
)
_COMPACT = re.compile(r"[a-z]{2,26}")
_ALONE = re.compile(r"(?<!\w)[a-z](?!\w)")
_BRACKETED = re.compile(r"(?<!\w)[(\[] ?([a-z]) ?[)\]]")


def fold(text: str) -> str:
    """Return a phrase as letters are looked for in it: normalised, lower case, without marks of Markdown."""
    return normalise(text[:_MAX_PHRASE_CHARS].replace("*", "").replace("`", ""))


def letters_of(phrase: str) -> frozenset[str] | None:
    """Return the letters that a phrase states, lower case; None unless it states several and nothing else.

    >>> sorted(letters_of("(B) and D."))
    ['b', 'd']
    >>> letters_of("B or D"), letters_of("BD") == letters_of("D, B"), letters_of("bd")
    (None, True, None)
    """
    folded = fold(phrase).strip(" .\\{}()[]")
    found = _LIST.fullmatch(folded)
    if found:
        letters = frozenset(_ALONE.findall(found[1]))
        others = {*_BRACKETED.findall(found[2] or "")} - letters
        return None if others else letters
    if _COMPACT.fullmatch(folded) and len({*folded}) == len(folded):
        there = unicodedata.normalize("NFKC", phrase[:_MAX_PHRASE_CHARS])
        return frozenset(folded) if folded.upper() in there else None
    return None


def gold_letters(gold: str) -> frozenset[str] | None:
    """Return the letters of a gold answer, `B, D`, `BD` or a JSON list of letters; None if it is none of these."""
    try:
        listed = json.loads(gold)
    except (ValueError, RecursionError):
        listed = None
    if isinstance(listed, list):
        folded = [fold(each).strip("()[]") for each in listed if isinstance(each, str)]
        single = all(len(each) == 1 and "a" <= each <= "z" for each in folded)
        return frozenset(folded) if folded and single and len(folded) == len(listed) else None
    marked = last_marked(gold, words=True)
    box = last_match(BOX, gold)
    return letters_of(marked if marked is not None else box[1] if box else gold)


def stated_letters(text: str) -> frozenset[str] | None:
    """Return the letters that a text states; None if it does not state several, or states two sets on one line."""
    marked = last_marked(text, words=True)
    if marked is not None:
        lines = [line for line in text.splitlines() if MARKS.search(line)]
        return _agreed(letters_of(marked), MARKS.split(lines[-1])[1:] if lines else [])
    boxed = [line for line in text.splitlines() if BOX.search(line)]
    if boxed:
        boxes = [*BOX.finditer(boxed[-1])]
        return letters_of(BOX.sub(_content, boxed[-1][boxes[0].start() : boxes[-1].end()]))
    said = last_match(_SAID, text)
    if said is not None:
        here, _, after = text[said.end() :].partition("\n")
        found = letters_of(here if fold(here) else after.strip().partition("\n")[0])
        earlier = _SAID.split(text[text.rfind("\n", 0, said.start()) + 1 : said.start()])[1:]
        return _agreed(found, earlier)
    return letters_of(text.strip().rpartition("\n")[2])


def _content(box: re.Match[str]) -> str:
    return box[1]


def _agreed(found: frozenset[str] | None, others: list[str]) -> frozenset[str] | None:
    """Return a set, or None if another one, or one letter alone, stands on its line."""
    sets = set[frozenset[str]]()
    for each in others:
        head = _HEAD.match(fold(each))
        sets.add(letters_of(each) or frozenset(_ALONE.findall(head[1]) if head else ()))
    articles = {frozenset(each) for each in ("", "a", "i")}
    return None if sets - articles - {found} else found
