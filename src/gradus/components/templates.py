r"""Templates: texts in which names in braces are replaced, and what a component says of the names in one of its own.

    filled("{question} Use {{x}}.", question="1 + 2 = {y}")    # "1 + 2 = {y} Use {x}."

    template: Annotated[str, Template("question", "answer")] = ""

A template is text, not a program: names are replaced once and literally, whatever braces the rest of it or the texts
have; `{{name}}` is `{name}`. `{answer:fenced}` puts the text between fences that it cannot close, for a model that
judges what another one wrote.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_PLACES = re.compile(r"\{\{([A-Za-z_]\w*(?::[a-z]+)?)\}\}|\{([A-Za-z_]\w*)(:[a-z]+)?\}")
_FENCED = ":fenced"
_TICKS = re.compile("`+")
_ARGUMENT = re.compile(r"(?:\\[A-Za-z]+(?:\[[^\]]*\])?(?:\{[^{}]*\})*|[\\^_])\Z")
"""Text before the braces of an argument in LaTeX: a command with its other arguments, a power, an index."""


def filled(template: str, **texts: str) -> str:
    r"""Return a template with the texts in the places of their names; other names stay as they are.

    >>> filled("{question} Use \\frac{a}{b} or {{question}}.", question="{a}?")
    '{a}? Use \\frac{a}{b} or {question}.'
    """

    def put(match: re.Match[str]) -> str:
        literal, name, form = match.groups()
        if literal or name not in texts or form not in (None, _FENCED):
            return f"{{{literal}}}" if literal else match[0]
        return fenced(texts[name]) if form else texts[name]

    return _PLACES.sub(put, template)


def fenced(text: str) -> str:
    r"""Return a text between lines of backticks, more than it has in a row, so that nothing in it ends there.

    >>> fenced("a ``` b")
    '````text\na ``` b\n````'
    """
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def places(template: str) -> list[str]:
    """Return the names in braces, in their order.

    >>> places("{question} {{x}} {answer}")
    ['question', 'answer']
    """
    return [match[2] for match in _PLACES.finditer(template) if match[2]]


def unknown_place(template: str, known: Collection[str]) -> str:
    r"""Return what is wrong with the first name in braces that is not known; empty if there is none.

    An argument in LaTeX is text, as in `\boxed{answer}`.

    >>> unknown_place("Q: {problem} \\sqrt{x}", ["question", "hint"])
    'has the unknown placeholder {problem}; there are {question} and {hint}, and {{problem}} is {problem} literally'
    """
    for match in _PLACES.finditer(template):
        name, form = match[2], match[3]
        if name and name in known and form not in (None, _FENCED):
            return f"has {match[0]}; write {{{name}}}, or {{{name}{_FENCED}}} for a text between fences"
        if name and name not in known and not _ARGUMENT.search(template[: match.start()]):
            return (
                f"has the unknown placeholder {{{name}}}; there are {_listed(known)}, "
                f"and {{{{{name}}}}} is {{{name}}} literally"
            )
    return ""


class Template:
    """Marks a text, inside Annotated, as a template: the names that it may have in braces, and those that it must have.

    Another name is refused when the settings are read, and so is a text without one of `needs`, or, if nothing is
    needed, without any of the names. The empty text stands for the component's own, if it has one.

    Args:
        names: The names in braces that the component replaces.
        needs: Those of them that the text must have.
        reads: Columns that the component reads, beside its `needs`, for a text that has a name.
        may_be_empty: False if it has no text of its own.
    """

    def __init__(
        self,
        *names: str,
        needs: tuple[str, ...] = (),
        reads: Mapping[str, tuple[str, ...]] | None = None,
        may_be_empty: bool = True,
    ) -> None:
        self.names, self.needs, self.reads, self.may_be_empty = names, needs, dict(reads or {}), may_be_empty

    def columns(self, text: str) -> Iterator[str]:
        """Yield the columns of the names that a text has."""
        for name in dict.fromkeys(places(text)):
            yield from self.reads.get(name, ())

    def checked(self, text: str) -> str:
        """Return a text; ValueError if it is no such template."""
        if not text and self.may_be_empty:
            return text
        there = places(text)
        fault = unknown_place(text, self.names)
        if not fault and (lacking := next((name for name in self.needs if name not in there), "")):
            fault = f"has no {{{lacking}}}: write {{{lacking}}} where it is to stand"
        if not fault and not {*self.names} & {*there}:
            fault = f"has no placeholder, so every prompt would be the same: write {_listed(self.names, 'or')}"
        if fault:
            raise ValueError(f"the template {fault}")
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the text when settings are read."""
        return core_schema.no_info_after_validator_function(self.checked, handler(source))


def _listed(names: Collection[str], word: str = "and") -> str:
    *first, last = (f"{{{name}}}" for name in names)
    return f"{', '.join(first)} {word} {last}" if first else last
