"""A home with two runs, copies of it with one file damaged, and what the verbs that read say of each."""

import contextlib
import io
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradus.data.errors import CorruptArtifactError, refuse
from gradus.flows.cli.main import main
from gradus.flows.recipe.reading import load_recipe
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.groups import Listing
from gradus.tasks.inspect.sql_views import open_run
from gradus.tasks.runs.journal import EVENTS, Journal
from gradus.tasks.runs.run_settings import RUN, write_settings
from tests.tasks.made_run import RUN as MADE
from tests.tasks.made_run import MadeRun

OTHER = "other-1"
QUERY = """
select 'samples', round::varchar, purpose, count(*)::double, sum(reward) from samples group by all
union all select 'question', min(question), max(answer), count(distinct domain), null from samples
union all select 'metrics', name, stage, count(*), sum(value) from metrics group by all
union all select 'runs', run, status || settings, stages, seconds from runs
union all select 'stages', stage || status, min(output) || max(output), count(*), sum(seconds) from stages group by all
union all select 'updates', checkpoint, min(rollout_id), count(*), sum(advantage) from updates group by all
union all select 'evaluations', suite, min(problem_id), sum(n), sum(k) from evaluations group by all
order by all
"""
QUICK: Mapping[str, Sequence[str]] = {
    "sql": ("sql", QUERY, "--json"),
    "sql --run": ("sql", QUERY, "--run", MADE, "--json"),
    "show": ("show", MADE),
    "runs": ("runs",),
    "compare": ("compare", MADE, OTHER, "--json"),
}
REPORT: Mapping[str, Sequence[str]] = {"report": ("report", MADE, "--out", "{out}")}


@dataclass(frozen=True)
class Said:
    """What a verb printed, how it ended, and what it said beside that."""

    code: int
    answer: str
    aside: str


def make_home(root: Path) -> None:
    """Write a training, and another one by other settings that has the same artifacts."""
    recipe = load_recipe("demo", [], rounds=2).model_dump(mode="json")
    made = MadeRun(Home(root), recipe=recipe).whole()
    other = made.folder.with_name(OTHER)
    shutil.copytree(made.folder, other)
    write_settings(other, {"verb": "train", "seed": 7, "recipe": {**recipe, "rounds": 2, "name": "other"}})
    with contextlib.suppress(KeyError):
        Journal(other).run_finished(status="finished")


def files(home: Path) -> list[Path]:
    """Every file that a verb may read, relative to the home."""
    journals = [home / "runs" / run / name for run in (MADE, OTHER) for name in (RUN, EVENTS)]
    return [path.relative_to(home) for path in (*sorted((home / "lake").glob("*/*/*")), *journals)]


def copied(home: Path, to: Path) -> Path:
    """Return a copy of a home; its artifacts, which nothing appends to, are links."""
    shutil.copytree(home / "lake", to / "lake", copy_function=os.link)
    return Path(shutil.copytree(home, to, ignore=lambda folder, _: ["lake"], dirs_exist_ok=True))


def flip(path: Path, rng: random.Random) -> int:
    """Flip one bit of a file, which gets an inode of its own; return the bit."""
    content = bytearray(path.read_bytes())
    bit = rng.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.unlink()
    path.write_bytes(content)
    return bit


def said(home: Path, words: Sequence[str]) -> Said:
    """Run the program in this process."""
    page = home / "page.html"
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setenv("GRADUS_HOME", str(home))
        try:
            main([word.format(out=page) for word in words])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    answer = page.read_text() if words[0] == "report" and not code else out.getvalue()
    return Said(code, answer.replace(str(home), ""), err.getvalue())


def browsed(home: Path, *, partial: bool = False) -> Said:
    """Return the lists that `gradus browse` draws."""
    aside: list[str] = []
    note = (lambda damage: aside.append(str(damage))) if partial else refuse
    try:
        with open_run(Home(home), MADE, aside.append, on_damage=note) as rows:
            lists = [cells for view in ("rounds", "problems", "groups") for _, cells in Listing(rows, view).page()]
    except CorruptArtifactError as damage:
        return Said(1, "", str(damage))
    return Said(0, repr(lists), "\n".join(aside))


def heard(home: Path, verbs: Mapping[str, Sequence[str]] = QUICK, *, partial: bool = False) -> dict[str, Said]:
    """Return what each verb says of a home."""
    more = ("--partial",) if partial else ()
    found = {verb: said(home, (*words, *more)) for verb, words in verbs.items()}
    return {**found, "browse": browsed(home, partial=partial)} if verbs is QUICK else found


def wrong(before: Said, now: Said, names: Sequence[str]) -> str:
    """Return what is wrong with what a verb says of a damaged home; empty if nothing is."""
    if now == before:
        return ""
    if now.code == 0:
        return f"another answer in silence: {_difference(before.answer, now.answer)} {now.aside}"
    if now.code < 0 or "Traceback" in now.aside or len(now.aside) > 500 or now.answer:
        return f"no sentence: {now}"
    return "" if any(name in now.aside for name in names) else f"neither file nor artifact is named: {now.aside}"


def _difference(before: str, now: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))
    return f"{before[at - 30 : at + 30]!r} -> {now[at - 30 : at + 30]!r}"


def flips(home: Path, folder: Path, number: int, verbs: Mapping[str, Sequence[str]], seed: int = 0) -> Iterator[str]:
    """Flip bits at random in copies of a home, one each; yield what verbs got wrong."""
    rng, before = random.Random(seed), heard(home, verbs)
    every = [path for path in files(home) if path.suffix in {".json", ".jsonl"} and path.name != "tokenizer.json"]
    for index in range(number):
        path = rng.choice(every)
        copy = copied(home, folder / str(index))
        bit = flip(copy / path, rng)
        for verb, now in heard(copy, verbs).items():
            if fault := wrong(before[verb], now, names_of(path)):
                yield f"{verb}, bit {bit} of {path}: {fault}"
        shutil.rmtree(copy)


def names_of(path: Path) -> list[str]:
    """Names by which a sentence may call a file: its own path, its artifact or its run."""
    return [str(path), f"{path.parts[1]}/{path.parts[2]}" if path.parts[0] == "lake" else path.parts[1]]
