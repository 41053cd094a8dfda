"""Translation of a journal's events for the tracker: metrics, tables, files, and the note of a run.

MLflow renders notes as Markdown, remote pictures included. So a note holds names, settings and figures, each escaped;
of an error only what stands before its first detail, since details may quote what a policy wrote. Does not import
MLflow.
"""

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from gradus.data.lake.manifest import FILE_NAME
from gradus.tasks.formats import markdown, visible
from gradus.tasks.runs.records import Report, RunFinished, RunStarted, Sample, StageFinished, StageStarted
from gradus.tasks.tracking.fold import Fold, Point, in_ms
from gradus.tasks.tracking.names import shown_name

MAX_CHANGES = 8
"""Changed settings that a note lists; the others are in the artifact."""
CHANGES_FILE = "recipe_diff.txt"
_DETAIL = re.compile(r": |['\"`\[<\n]")

REPORT_PAGE, SAMPLE_TABLE = "report.html", "samples.json"
METHODS_TABLE, DIFFERENCES_TABLE = "comparison_methods.json", "comparison_differences.json"
COMPARISON, COMPARISON_PICTURE, PLAN = "comparison.json", "comparison.png", "plan.json"
LABORATORY, LABORATORY_TABLE, LABORATORY_PICTURE = "laboratory.json", "laboratory_methods.json", "laboratory.png"
AGREEMENT = "agreement.json"
"""Files that the ends of a training, a comparison, a laboratory and an agreement leave in the folder of the run."""
_TABLES = (SAMPLE_TABLE, METHODS_TABLE, DIFFERENCES_TABLE, LABORATORY_TABLE)
FILES = (REPORT_PAGE, *_TABLES, COMPARISON, COMPARISON_PICTURE, PLAN, LABORATORY, LABORATORY_PICTURE, AGREEMENT)
MAX_ROWS = 64


def opening(event: RunStarted) -> list[str]:
    """Return the lines that are known when a command begins: what it is and, of a training, what was changed."""
    params = event.get("params", {})
    recipe, methods = params.get("recipe"), params.get("methods")
    verb, commit = event.get("verb", ""), event.get("git_sha", "")[:8]
    by = f", by the commit {markdown(commit)}" if commit else ""
    if isinstance(methods, Mapping):
        return [f"{code(verb)} of {', '.join(markdown(name) for name in methods)}{by}."]
    if not isinstance(recipe, Mapping):
        return [f"{code(verb)}, one stage on its own{by}."]
    there = [key for key in ("seed", "rounds", "policy", "problems") if key in recipe]
    facts = ", ".join(f"{key} {markdown(str(recipe[key]))}" for key in there)
    return [f"{code(verb)} of the recipe {markdown(str(recipe.get('name', '')))}: {facts}{by}.", _changed(event)]


def _changed(event: RunStarted) -> str:
    changes = event.get("changed")
    if changes is None:
        return "What was changed from the defaults is not known: an earlier version began this run."
    if not changes:
        return "Every setting is the default."
    shown = [code(f"{key} {f'{old} → ' if old else ''}{new}") for key, (old, new) in changes.items()]
    more = len(shown) - MAX_CHANGES
    rest = f"; {more} more in {CHANGES_FILE}" if more > 0 else ""
    return f"Changed from the defaults: {', '.join(shown[:MAX_CHANGES])}{rest}."


def changes_text(changes: Mapping[str, Sequence[str]]) -> str:
    """Return the changed settings for reading, one a line: each one's default and its value here."""
    lines = [f"{key} = {_one_line(new)}    (default: {_one_line(old)})" for key, (old, new) in changes.items()]
    return "\n".join(lines or ["every setting is the default"]) + "\n"


def run_note(fold: Fold, ended: RunFinished | None) -> str:
    """Return the note of a command's run: what it was, how it ended, what it found, its settings, how to resume."""
    what, *changed = opening(fold.started) if fold.started else ["A run."]
    training = bool(changed)
    lines = [what, _ended(fold, ended), *([_found(fold.figures)] if training else []), *changed]
    return _listed([*lines, _next_command(fold, ended, training=training)])


def reused_note(commands: int, at: datetime) -> str:
    """Return the line of commands that computed nothing, which leave the rest of a note as it is."""
    how_many = "One later command" if commands == 1 else f"{commands} later commands"
    return f"- {how_many} found everything computed, the last on {at:%Y-%m-%d %H:%M} UTC.\n"


def links_note(experiment: str, trainings: Mapping[str, str]) -> str:
    """Return the trainings of a comparison as lines of its note: MLflow's id by name, empty if it has none yet."""
    return _listed(
        [
            f"Training [{markdown(name)}](#/experiments/{experiment}/runs/{run_id})" if run_id else code(name)
            for name, run_id in trainings.items()
        ]
    )


def _ended(fold: Fold, ended: RunFinished | None) -> str:
    if ended is None:
        return "It has not ended."
    done = ", ".join(f"{number} {word}" for word, number in fold.counts.items())
    rounds = f"{fold.num_rounds} round{'s' * (fold.num_rounds > 1)} in " if fold.num_rounds else ""
    how = f"{ended['status'].capitalize()} after {rounds}{fold.seconds:.0f} s (stages: {done})"
    error = ended.get("error", "")
    return f"{how}: {markdown(headline(error))}." if error else f"{how}."


def _found(figures: Mapping[str, float]) -> str:
    if "pass_at_1" not in figures:
        return "No evaluation has ended."
    start = f"{figures['start']:.3f} at the start, " if "start" in figures else ""
    found = f"pass@1: {start}{figures['pass_at_1']:.3f} at last"
    if not {"gain", "gain_ci_low", "gain_ci_high"} <= figures.keys():
        return f"{found}."
    return f"{found}; gain {figures['gain']:+.3f} ({figures['gain_ci_low']:+.3f} to {figures['gain_ci_high']:+.3f})."


def _next_command(fold: Fold, ended: RunFinished | None, *, training: bool) -> str:
    show = _command("show", fold.run)
    if not training or ended is None:
        return f"{show} says more."
    if ended["status"] == "finished":
        more = 2 * max(1, fold.num_rounds)
        return f"{_command('train', fold.run, '--rounds', str(more))} resumes; {show} says more."
    return f"{_command('train', fold.run)} resumes it; {show} says more."


def _command(*words: str) -> str:
    return code(shlex.join(("gradus", *words)))


def stage_note(run: str, call: StageStarted, end: StageFinished) -> str:
    """Return the note of a stage attempt: what it was, how it ended, what it read and wrote, what explains it."""
    purpose = "" if call["purpose"] == "train" else f" ({markdown(call['purpose'])})"
    read = [f"{role} {code(ref)}" for role, refs in call.get("inputs", {}).items() for ref in refs[:3]]
    ended = f"{end['status'].capitalize()} after {end['seconds']:.1f} s"
    return _listed(
        [
            f"{code(call['stage'])} of round {call['round']}{purpose} of the run {code(run)}.",
            f"{ended}: {markdown(headline(end['error']))}." if end["error"] else f"{ended}.",
            f"It read {', '.join(read) or 'nothing'}.",
            f"It writes {code(call['output'])}.",
            f"{_command('why', run, call['stage'])} says why it was computed.",
        ]
    )


def headline(error: str) -> str:
    """Return the beginning of an error's sentence without the details behind it, which may quote a policy.

    >>> headline("2 of 8 rows could not be judged, more than allowed: r1: ![](http://x)")
    '2 of 8 rows could not be judged, more than allowed'
    """
    return _DETAIL.split(error, maxsplit=1)[0].strip()[:200] or "see the tag gradus.error"


def code(text: str) -> str:
    """Return a name or a command in Markdown's form for code, on one line.

    >>> code("gradus show a`b")
    "`gradus show a'b`"
    """
    return f"`{_one_line(text).replace('`', chr(39))}`"


def _one_line(text: str) -> str:
    return visible(text, 300).replace("\n", " ")


def _listed(lines: Sequence[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


def points(report: Report, time_s: float) -> list[Point]:
    """Return the points of an attempt's own curves: its optimiser steps, then its end.

    The end stands at step 0, where MLflow draws a bar and not a line of one dot, without what the optimiser steps said
    already. What is not finite is left out.
    """
    steps = report.get("steps", [])
    said = {name for step in steps for name in step}
    ended = {name: value for name, value in report.get("metrics", {}).items() if name not in said}
    return [
        (shown_name(name), value, in_ms(time_s), step)
        for step, metrics in (*enumerate(steps), (0, ended))
        for name, value in metrics.items()
        if math.isfinite(value)
    ]


def shown(sample: Sample, keys: tuple[str, ...]) -> dict[str, dict[str, list[str]]]:
    """Return the fields of a sample that have a value, as lines without hidden characters.

    Each is an object, which MLflow shows as JSON; it would render a text as Markdown and load the pictures in it.
    """
    return {key: {"lines": visible(str(sample[key])).split("\n")} for key in keys if sample.get(key)}


def write_files(folder: Path, artifact: Path, call: StageStarted, samples: Sequence[Sample]) -> None:
    """Write settings, manifest (of the folder `artifact`, if there is one) and samples of a stage attempt as files."""
    (folder / "config.json").write_text(json.dumps(call["config"], indent=1), encoding="utf-8")
    if (artifact / FILE_NAME).exists():
        (folder / FILE_NAME).write_bytes((artifact / FILE_NAME).read_bytes())
    if samples:
        (folder / SAMPLE_TABLE).write_text(sample_table(samples), encoding="utf-8")


def sample_table(samples: Sequence[Sample]) -> str:
    """Return the first samples as a table."""
    return logged_table(list(dict.fromkeys(name for row in samples for name in row)), samples[:MAX_ROWS])


def logged_table(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as `mlflow.log_table` writes a table, texts without hidden characters."""
    data = [[_cell(row.get(name)) for name in columns] for row in rows]
    return json.dumps({"columns": [visible(name, 200) for name in columns], "data": data}, allow_nan=False)


def _cell(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    return visible(value if isinstance(value, str) else json.dumps(value, default=str))


def tables_tag(files: Sequence[Path]) -> dict[str, str]:
    """Return the tag by which MLflow finds tables among the files of a run."""
    tables = [{"path": path.name, "type": "table"} for path in files if path.name in _TABLES]
    return {"mlflow.loggedArtifacts": json.dumps(tables)} if tables else {}
