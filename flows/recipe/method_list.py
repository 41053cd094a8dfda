"""Parts of a run: methods as overlays, components of each kind and engines, to be listed and searched.

selected("entropy")                # kind -> name -> facts, of all whose name, sentence, formula or paper has the word
selected("gspo")                   # those of this name alone
selected(kind="loss", paper="2507.18071")
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from gradus.components import Kind
from gradus.data.errors import UsageError, shortened
from gradus.data.nearest import did_you_mean
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.schedules import KEY, is_schedule
from gradus.flows.recipe.overlays import Method, find_overlays, overlay_files
from gradus.tasks.inspect.catalogue import Component, Setting, catalogue, kind_of, settings_of

METHOD, RECIPE = "method", "recipe"


Facts = Mapping[str, Mapping[str, Component | Method]]
"""Kind -> name -> facts; the kind of an overlay is `method`."""


def listed() -> Facts:
    """Return everything: overlays, stages, components of each kind, engines."""
    return {METHOD: {each.name: each.facts for each in find_overlays(list(overlay_files()))}, **catalogue()}


def selected(word: str = "", kind: str = "", paper: str = "") -> Facts:
    """Return the parts of a kind and a paper with this name, or else this word, or all; UsageError if there is none."""
    everything = listed()
    if kind and kind not in everything:
        raise UsageError(f"there is no kind {shortened(kind)!r}", hint=did_you_mean(kind, everything))
    rows = [(each, *row) for each, named in everything.items() if each == (kind or each) for row in named.items()]
    if word or kind or paper:
        shown = [row for row in rows if kind or row[0] != "stage"]
        rows = [row for row in shown if paper.lower() in row[2]["paper"].lower()]
    found = [row for row in rows if row[1] == word] or [row for row in rows if _has(*row[1:], word)]
    if not found:
        names = [name for named in everything.values() for name in named]
        wanted = " ".join(filter(None, (word, f"--kind {kind}" * bool(kind), f"--paper {paper}" * bool(paper))))
        raise UsageError(f"nothing matches {shortened(wanted)}", hint=did_you_mean(word, names, "see `gradus methods`"))
    chosen: dict[str, dict[str, Component | Method]] = {}
    for each, name, facts in found:
        chosen.setdefault(each, {})[name] = facts
    return chosen


def listed_settings(of: str = "") -> dict[str, Component]:
    """Return settings of a recipe that are no stage's, and those of each stage, or of one; UsageError if none is."""
    stages = catalogue()["stage"]
    recipe = {key: each for key, each in settings_of(Recipe).items() if stages.keys().isdisjoint(key.split(".")[:-1])}
    if not of:
        return {RECIPE: _recipe(recipe), **stages}
    if of in stages:
        return {of: stages[of]}
    if own := recipe if of == RECIPE else {key: each for key, each in recipe.items() if key.partition(".")[0] == of}:
        return {RECIPE: _recipe(own)}
    hint = did_you_mean(of, [RECIPE, *stages, *recipe], f"the stages are {', '.join(stages)}")
    raise UsageError(f"there is no stage {shortened(of)!r}, and no such key of a recipe", hint=hint)


def _recipe(settings: dict[str, Setting]) -> Component:
    what = "Keys of a recipe beside the settings of its stages."
    return {"what": what, "paper": "", "settings": settings, "doc": what, "setting": "", "where": "", "test": ""}


def named_by(method: Method) -> Iterator[tuple[Kind, str]]:
    """Yield kind and name of each component that an overlay names."""
    for key, value in method["settings"].items():
        kind = kind_of(key)
        for part in cast("list[Any]", value) if isinstance(value, list) else [value]:
            if is_schedule(part):
                yield "schedule", str(cast("Mapping[str, Any]", part)[KEY])
                continue
            name = part.get("name", "") if isinstance(part, dict) else part
            if kind is not None and name:
                yield kind, str(name)


def _has(name: str, facts: Component | Method, word: str) -> bool:
    texts = (name, facts["what"], facts["paper"], str(facts.get("doc", "")), str(facts.get("deviates", "")))
    return any(word.lower() in text.lower() for text in texts)
