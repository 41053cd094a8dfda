"""Columns that components of a round declare to read, against those that their rows have.

check_reads(config.curate.filters[0], {})      # UsageError: filter mine.py:odd needs reward, ...
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from gradus.components.chosen import Chosen, FilterConfig, MeasureConfig, TrackerConfig
from gradus.components.registry import function_of
from gradus.data.curation.uses import split_need
from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.schema import OF_MARKS, OF_PARTS, OF_PLAN, OF_PROBLEM
from gradus.tasks.config.trackers import is_tracked

_OF_CANDIDATES, _OF_ROUNDS = (OF_PROBLEM,), (OF_PROBLEM, OF_PLAN, OF_PARTS, OF_MARKS)
"""Beginnings of the names of columns that candidates, and the rows of a round, have beside those that are known."""
_MEASURED = (("problem_id",), ("rollout_id",), ("trace_id",))
"""Keys of measures: of problems, of rollouts, of the texts of a file."""


def check_reads(chosen: Chosen, tracked: Mapping[str, Sequence[str]]) -> None:
    """Refuse a column that candidates, or the rows of a round, do not have.

    `tracked` are the columns of trackers that there are, each with its key columns.
    """
    from gradus.data.curation.candidates import PROMPT_TOKENS, Candidates, no_candidates  # noqa: PLC0415 - loads Arrow's functions
    from gradus.data.curation.round import RoundRows  # noqa: PLC0415
    from gradus.data.curation.traces import TraceRows  # noqa: PLC0415

    component, begins, known = chosen.component, _OF_CANDIDATES, [*Candidates.known]
    if isinstance(chosen, MeasureConfig) and chosen.of_traces:
        known = [*TraceRows.known]
    elif chosen.kind in ("wave", "tracker") or (isinstance(chosen, MeasureConfig) and not chosen.of_problems):
        begins, known = _OF_ROUNDS, [*RoundRows.known, *known]
    if isinstance(chosen, TrackerConfig | MeasureConfig):
        _check_keeper(chosen, RoundRows.known)
    elif chosen.kind == "hint":
        known.remove(PROMPT_TOKENS)
    elif chosen.kind == "wave":
        known = ["hint", "stored", "traces", *known]
    named = [split_need(need)[1] if begins is _OF_ROUNDS else need for need in component.needs or ()]
    needs = [need for need in named if need not in tracked]
    if isinstance(chosen, MeasureConfig) and (alone := next(filter(is_tracked, needs), "")):
        raise UsageError(
            f"measure {chosen.label} needs {alone}, a column of a tracker or measure",
            hint="a measure sees problems, rollouts or texts alone: combine the columns where they are read",
        )
    if alone := next(filter(is_tracked, needs), ""):
        raise UsageError(
            f"{chosen.kind} {chosen.label} needs {alone}, a column of a tracker",
            hint="trackers stand in a recipe, and a training keeps them: gradus train RECIPE",
        )
    plain = [need for need in needs if not need.startswith(begins)]
    refuse_needs(chosen, plain, list(dict.fromkeys(known)), "".join(f" or {each}NAME" for each in begins))
    if begins is _OF_CANDIDATES:
        _refuse_keys(chosen, {need: tracked[need] for need in component.needs or () if need in tracked}, known)
    if isinstance(chosen, FilterConfig) and chosen.is_ours:
        function_of(component)(no_candidates(), **component.settings(**chosen.settings).model_dump())


def refuse_needs(part: Chosen, needs: Iterable[str], known: Collection[str], more: str = "") -> None:
    """Raise UsageError if a component needs a column that its kind is not handed."""
    for need in needs:
        if need not in known:
            raise UsageError(
                f"{part.kind} {part.label} needs {need}, which its kind is not handed",
                hint=f"it can need {', '.join(known)}{more}",
            )


def _refuse_keys(chosen: Chosen, tracked: Mapping[str, Sequence[str]], known: Collection[str]) -> None:
    """Raise UsageError if the rows of a tracker or measure are kept by what problems do not have."""
    for need, by in tracked.items():
        if odd := next((key for key in by if key not in known and not key.startswith(_OF_CANDIDATES)), ""):
            raise UsageError(
                f"{chosen.kind} {chosen.label} needs {need}, which is kept by {odd}, and problems have no {odd}",
                hint="let a wave read it, or keep it by columns of problems",
            )


def _check_keeper(chosen: TrackerConfig | MeasureConfig, known: Collection[str]) -> None:
    """Raise BadInputError for a tracker or measure without columns, or with keys that its rows do not have."""
    component, what = chosen.component, f"{chosen.kind} {chosen.label}"
    if not component.columns:
        hint = f'declare them: @component("{chosen.kind}", columns=("value",))'
        raise BadInputError(f"{what} keeps no columns", hint=hint)
    if isinstance(chosen, MeasureConfig) and component.by not in _MEASURED:
        keys = ", ".join(component.by) or "no key"
        written = " or ".join(f'by=("{key}",)' for (key,) in _MEASURED)
        raise BadInputError(f"{what} has {keys} as its key", hint=f"write {written}")
    if odd := next((name for name in component.columns if not name.isidentifier() or name in component.by), ""):
        raise BadInputError(
            f"{what} cannot keep a column {odd!r}", hint="take letters, digits and _, and no key column"
        )
    named = () if isinstance(chosen, MeasureConfig) else component.by
    if odd := next((name for name in named if name not in known and not name.startswith(_OF_ROUNDS)), ""):
        raise BadInputError(
            f"{what} keeps its rows by {odd}, which the rows of a round do not have",
            hint=f"a column of problems is written problem.{odd}; others are those of rollouts and scores",
        )
