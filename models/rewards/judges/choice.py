r"""The reward `choice`: the letter of a multiple-choice question.

    judge({"completion": "It blocks COX-1.\nThe answer is (B) aspirin"}, "B", {}).outcome   # correct

Gold is a letter (`B`, `(B)`, `b`), a letter with text (`B. aspirin`, `(B) aspirin`), or, if the row has the options,
the text of one. Options come from the column `options` or `choices`, or from these keys of the JSON in `extra`: a list
(A, B, C ... in order), a mapping from letter to text, or `{"label": [...], "text": [...]}`.

Where the answer is read, the first of these that is there:

    1. behind the last `####`; else in the last `\boxed{}`
    2. behind the last `answer is`, `answer:`, `choice is`, `option:` ..., on that line or, if it ends there, the next
    3. the last line that is not empty

What is read there, after NFKC (full-width letters), case folding and removal of `*`, `` ` ``, `$`, `\text{}`:

    phrase = [option | choice | answer | letter] label | an option's text, whole
    label  = (X) [text] | X) [text] | X. text | X: text | X [,] because ... | X is [the] correct ... | X      X: A to Z

A letter must stand there by itself: none is taken out of a word (`e.g.`, `B-cell`), and one followed by a word is an
article, a pronoun or a name (`A tree`, `I think`, `B cells`) and no answer. `(X) is wrong` is none either.
A hedge is unparsed: a second letter that is joined to the first (`A or B`, `(A) and (B)`, `A/B`), another box or marker
on the same line, a list of options as the last lines, a letter with the text of another option.
With the setting `several` a gold of more letters (`B, D`, `BD`, or a JSON list) wants exactly these: judges.letters.
Left out: numbers as labels, several right answers by their texts, `E. coli` behind a marker if the row has no options
(reads as E).
"""

import json
import re
from collections.abc import Mapping

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, judged, unparsed
from gradus.models.rewards.judges.letters import BOX, MARKS, fold, gold_letters, stated_letters
from gradus.models.rewards.text import last_match, marked_answer, strip_invisible, visible_text

Options = Mapping[str, str]
"""Letter (lower case) -> the option's text, normalised."""

_HEDGE = "?"

_SAID = re.compile(r"\b(?:answer|choice|option)[*_` ]{0,8}(?:is\b|:|=)[ \t]*:?", re.IGNORECASE)
_ITEM = re.compile(r"^[ \t*>-]*[(\[（]?([A-Za-zＡ-Ｚａ-ｚ])[)\].:）．：][ \t*]+(?=\S)", re.MULTILINE)

_KIND = r"(?:(?:the )?(?:option|choice|answer|letter) )?"
_LONE = re.compile(rf"{_KIND}(?:[(\[{{] ?([a-z]) ?[)\]}}]|([a-z]) ?[)\].:]?)")
_LABELLED = re.compile(rf"{_KIND}(?:[(\[{{] ?([a-z]) ?[)\]}}][.:]?|([a-z])(?:\)|[.:](?= )))(.+)", re.DOTALL)
_REASONED = re.compile(rf"{_KIND}([a-z])(,? (?:because|since|as|for|due|which)\b.*)", re.DOTALL)
_ASSERTED = re.compile(
    rf"{_KIND}[(\[]?([a-z])[)\]]?( is (?:indeed )?(?:the )?(?:best |only )?(?:correct|right|answer)\b.*)"
)
_VERB = re.compile(
    r" ?(?:(?:is|are|was|were|has|had|does|do|did|can|could|would|should|must|might|may|will)(?:n't|nt| not)?|cannot"
    r"|can't|fails?|seems?|contradicts|violates|not)\b"
)
_JOINED = re.compile(
    r" ?(?:(?:and/or|or|and|versus|vs|maybe|perhaps|possibly|also)\b[ .(]*+|[,/&+;|] ?)++"
    r"(?:(?:option|choice) )?[(\[]? ?([b-hj-z](?![\w'])|[ai](?=[)\].,:;/ ]*$|[)\].,:;/]))"
)
_HEAD = re.compile(rf"{_KIND}[(\[]? ?([b-hj-z](?![\w'])|[ai](?= ?(?:$|[)\].,:;/&]|(?:or|and)\b)))")
_BRACKETED = re.compile(r"(?<!\w)[(\[] ?([a-z]) ?[)\]]")
_LATER = re.compile(r"(?:\b(?:or|and)|[,;/&]) ?([a-z])[).:](?: |$)|(?:\b(?:or|vs)|/) ?([a-z])$")


@component("reward", name="choice", columns=("options", "choices", "extra"), needs_gold=True)
def judge(row: Row, gold: str, max_chars: int, *, several: bool = False) -> Verdict:
    """1 if the completion states the gold letter and no other, 0 otherwise; an error if the gold cannot be read.

    Args:
        row: The completion.
        gold: The letter, or the text of an option.
        max_chars: Longer completions are judged by their last characters.
        several: True if a gold of several letters is right where exactly these are stated; else it is an error.
    """
    options = read_options(row)
    wanted = read_gold(gold, options)
    all_wanted = gold_letters(gold) if several and wanted is None else None
    if all_wanted is not None and (not options or all_wanted <= options.keys()):
        return _judged_set(row, all_wanted, options, max_chars)
    if wanted is None:
        among = f" among the options {', '.join(options).upper()}" if options else ""
        return failed(f"the gold answer {gold[:80]!r} is no letter{among}, and not the text of exactly one option")
    text = visible_text(row["completion"], max_chars)
    found = None if text is None else read_answer(strip_invisible(text), options)
    return unparsed() if found is None else judged(correct=found == wanted, extracted=found.upper())


def _judged_set(row: Row, wanted: frozenset[str], options: Options, max_chars: int) -> Verdict:
    """1 if the completion states exactly these letters, 0 otherwise."""
    text = strip_invisible(visible_text(row["completion"], max_chars) or "")
    one = read_answer(text, options)
    found = stated_letters(text) if one is None else frozenset(one)
    return unparsed() if found is None else judged(correct=found == wanted, extracted=", ".join(sorted(found)).upper())


def read_gold(gold: str, options: Options) -> str | None:
    """The gold letter, lower case; None if it cannot be read, is not an option, or could mean two options."""
    marked = marked_answer(gold, words=True)
    phrase = gold if marked is None else marked
    letter, named = read_phrase(phrase, {}), _option(fold(phrase), options)
    if named and letter and letter != named:
        return named if _LONE.fullmatch(fold(phrase)) is None else None
    letter = named or letter
    return letter if letter and letter != _HEDGE and (not options or letter in options) else None


def read_answer(text: str, options: Options) -> str | None:
    """The letter that a text states, lower case; None if it states none, or hedges."""
    if marked_answer(text, words=True) is not None:
        return _sure(_marked(text, options))
    return _sure(_said(text, options) or _last_line(text, options))


def read_phrase(text: str, options: Options) -> str | None:
    """The letter that one phrase states; `?` if it states two, None if it states none."""
    phrase = fold(text)
    lone = _LONE.fullmatch(phrase)
    if lone:
        return lone[1] or lone[2]
    named = _option(phrase, options)
    if named:
        return named
    found = _ASSERTED.fullmatch(phrase) or _REASONED.fullmatch(phrase)
    if found is None:
        found = _LABELLED.fullmatch(phrase) or _BARE.match(phrase)
        if found is None or _VERB.match(found[found.re.groups]):
            return None
    letter, rest = next(group for group in found.groups() if group), found[found.re.groups]
    return _HEDGE if _second_letter(letter, rest, options) else letter if found.re is not _BARE else None


_BARE = re.compile(rf"{_KIND}(?:either )?([a-z])([ ,/&+;|].*)", re.DOTALL)
"""A letter without brackets or separator: no answer, but what follows may make it a hedge."""


def read_options(row: Row) -> dict[str, str]:
    """The options of a row, normalised; empty if it has none that can be read."""
    given = row.get("options") or row.get("choices")
    if not given and isinstance(row.get("extra"), str):
        try:
            extra = json.loads(row["extra"])
        except ValueError:
            extra = None
        given = (extra.get("options") or extra.get("choices")) if isinstance(extra, dict) else None
    pairs = _pairs(given)
    labels = [fold(label).strip("()[]") for label, _ in pairs]
    if any(len(label) != 1 or not "a" <= label <= "z" for label in labels) or len(set(labels)) < len(labels):
        return {}
    return {label: _without_label(label, fold(text)) for label, (_, text) in zip(labels, pairs, strict=True)}


def _pairs(given: object) -> list[tuple[str, str]]:
    """Labels and texts of options in any of the shapes that data sets have."""
    if isinstance(given, Mapping):
        labels, texts = given.get("label"), given.get("text")
        if isinstance(labels, list) and isinstance(texts, list):
            return [(str(label), str(text)) for label, text in zip(labels, texts, strict=False)]
        return [(str(label), str(text)) for label, text in given.items() if text is not None]
    texts = given if isinstance(given, list) else []
    return [(chr(ord("a") + index), str(text)) for index, text in enumerate(texts)] if len(texts) <= 26 else []


def _without_label(label: str, text: str) -> str:
    found = _LABELLED.fullmatch(text)
    return found[3].strip() if found and (found[1] or found[2]) == label else text


def _marked(text: str, options: Options) -> str | None:
    """The answer behind markers or in boxes: those of the last line that has any must agree."""
    content = marked_answer(text, words=True) or ""
    found = read_phrase(content, options)
    lines = [line for line in text.splitlines() if MARKS.search(line) or BOX.search(line)]
    last = lines[-1] if lines else ""
    peers = MARKS.split(last)[1:] if MARKS.search(last) else BOX.findall(last)
    heads = (_HEAD.match(fold(peer)) for peer in set(peers))
    return _HEDGE if found and any(head and head[1] != found for head in heads) else found


def _said(text: str, options: Options) -> str | None:
    """The answer behind the last `answer is`; if that line says so several times, the same each time."""
    said = last_match(_SAID, text)
    if said is None:
        return None
    here, _, _ = text[said.end() :].partition("\n")
    found = read_phrase(here, options) if fold(here) else _first_line(text[said.end() :], options)
    earlier = _SAID.split(text[text.rfind("\n", 0, said.start()) + 1 : said.start()])[1:]
    heads = (_HEAD.match(fold(part)) for part in earlier)
    return _HEDGE if found and any(head and head[1] != found for head in heads) else found


def _first_line(text: str, options: Options) -> str | None:
    """The answer in the line after `The answer is:`, unless a list of options begins there."""
    lines = text.strip().split("\n", 1)
    items = {fold(letter) for letter in _ITEM.findall(text)}
    return _HEDGE if len(items) > 1 else read_phrase(lines[0], options)


def _last_line(text: str, options: Options) -> str | None:
    """The answer in the last line, unless it ends a list of options or the line before states another."""
    before, _, line = text.strip().rpartition("\n")
    found = read_phrase(line, options)
    if not found:
        return None
    if _LONE.fullmatch(fold(line)):
        previous = fold(before.rstrip().rpartition("\n")[2])
        other = _LONE.fullmatch(previous)
        return _HEDGE if other and (other[1] or other[2]) != found else found
    items = {fold(letter) for letter in _ITEM.findall(text)}
    return _HEDGE if items - {found} else found


def _second_letter(letter: str, rest: str, options: Options) -> bool:
    """Return whether the text behind a letter states another one, or the text of another option."""
    text = rest.strip(" .")
    if options.get(letter) == text:
        return False
    named = _option(text, options)
    others = {group for match in (*_BRACKETED.finditer(rest), *_LATER.finditer(rest)) for group in match.groups()}
    joined = _JOINED.match(rest)
    return bool((named and named != letter) or others - {letter, None} or (joined and joined[1] != letter))


def _option(phrase: str, options: Options) -> str | None:
    """The option that has this text; None if none or more than one has."""
    found = [letter for letter, text in options.items() if text and text == phrase]
    return found[0] if len(found) == 1 else None


def _sure(found: str | None) -> str | None:
    return None if found == _HEDGE else found
