"""Refuse a command before anything starts: names and files, looked at without reading a table.

Only what the stage itself would certainly refuse is refused here; nothing is imported that takes long.
What settings ask of each other is looked at in gradus.tasks.preflight.abilities.
"""

import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from gradus.components.addresses import is_address
from gradus.components.chosen import HINT_TEXTS, Chosen, FilterConfig, MeasureConfig, TrackerConfig, chosen_in
from gradus.components.description import DescriptionError
from gradus.components.registry import function_of, users_file
from gradus.components.settings import Config
from gradus.components.stage import Stage
from gradus.data.curation.uses import split_need
from gradus.data.errors import BadInputError, UsageError, shortened
from gradus.data.lake.manifest import FILE_NAME, Manifest, read_manifest
from gradus.data.lake.names import Ref, artifacts_of, regular_file
from gradus.data.lake.schema import CHECKPOINTS, OF_MARKS, OF_PARTS, OF_PLAN, OF_PROBLEM
from gradus.data.nearest import did_you_mean, unique
from gradus.data.package import package_file
from gradus.data.sources.streams import refuse_source
from gradus.models.policy_files import ADAPTER_CONFIG, CONFIG, WHOLE, FileError, refuse_broken
from gradus.tasks.config.curation import CurateConfig, IngestConfig
from gradus.tasks.config.redaction import check_seen_variables
from gradus.tasks.config.rounds import is_tracked
from gradus.tasks.config.score import RewardConfig

Named: TypeAlias = Mapping[str, Sequence[str]]
"""Inputs named by the user, by role."""
REFERENCE = re.compile(r"[a-z]+/[0-9a-f]{4,64}")
"""An artifact by its name or the beginning of it."""
SAMPLES = package_file("data", "samples")
ASK_AGAIN = "do not use this folder; ask for it again where it came from"
ANOTHER = "name another folder, or move away what is there"
_NAME_BYTES = 128
_NUM_LISTED = 8


def check_input(lake: Path, text: str, table: str) -> None:
    """Raise UsageError if `text` names neither an artifact of a table nor a file or folder to read as one."""
    if not text.strip():
        raise UsageError(f"the name of the {table} is empty", hint="give a file or an artifact")
    if in_lake(lake, text, table) is not None:
        return
    if (Path(text) / FILE_NAME).is_file():
        artifact_in(Path(text), table)
    elif table == CHECKPOINTS:
        _check_policy(lake, text)
    else:
        file_of(text, table)


def in_lake(lake: Path, text: str, table: str) -> Ref | None:
    """Return the artifact of the lake that a text names; None if it names none, UsageError if of another table."""
    if not REFERENCE.fullmatch(text):
        return None
    if (named := text.partition("/")[0]) != table:
        raise UsageError(f"{text} is a {named} artifact", hint=f"give one of {table}")
    return Ref.parse(full_name(lake, text))


def file_of(text: str, table: str) -> Path:
    """Return the file of rows that a text names; UsageError if there is none."""
    path = bundled(text) or Path(text)
    if not path.is_file():
        hint = f"give a JSONL or Parquet file of {table}"
        raise UsageError(f"{shortened(text)} is neither a file nor an artifact", hint=hint)
    return path


def policy_folder(lake: Path, text: str) -> Path:
    """Return the folder of a policy of this machine; UsageError if it is neither there nor has a revision."""
    folder = bundled(text) or average_of(lake, text) or Path(text)
    if not folder.is_dir() and not text.partition("@")[2]:
        name = shortened(text)
        raise UsageError(f"{name} is no folder; a policy on the hub needs its revision", hint=f"write {name}@<commit>")
    return folder


def artifact_in(folder: Path, table: str) -> Ref:
    """Return the artifact that a folder holds, by its manifest; UsageError if that is of another table."""
    regular_file(folder, FILE_NAME)
    ref = read_manifest(folder, ASK_AGAIN).ref
    if ref.table != table:
        raise UsageError(f"{shortened(str(folder))} holds {ref.table}", hint=f"give a folder of {table}")
    return ref


def full_name(lake: Path, reference: str) -> str:
    """The name of an artifact by a beginning that no other of its table has; UsageError if that names none."""
    known = [str(ref) for ref in artifacts_of(lake, reference.partition("/")[0])]
    return unique(reference, known, "artifact", "list what runs made with `gradus show RUN`")


def check_inputs(lake: Path, **named: str | list[str] | None) -> None:
    """Check several inputs, each by its role; inputs that were not named are not checked."""
    for role, texts in named.items():
        table = CHECKPOINTS if role in ("policy", "reference", "teacher", "against") else role
        for text in [texts] if isinstance(texts, str) else texts or []:
            check_input(lake, text, table)


def check_stage(stage: Stage, settings: Config, inputs: Named) -> None:
    """Refuse components that cannot be used, and what the stage itself would certainly refuse."""
    check_components(settings)
    stage.refuse(settings, inputs)


def check_ingest(config: IngestConfig, inputs: Named) -> None:
    """Raise UsageError for a source that is not there, or a policy without tokens to count."""
    refuse_source(inputs["source"][0], config.revision, config.generator)
    _refuse_alone(inputs, "policy", "--set max_prompt_tokens=N", used=bool(config.max_prompt_tokens))


def check_curate(config: CurateConfig, inputs: Named) -> None:
    """Raise UsageError for an input that nothing reads, or a filter or level without what it reads."""
    _refuse_alone(inputs, "policy", "--filter prompt_tokens:high=N", used=config.counts_tokens)
    _refuse_alone(inputs, "evaluated", "--filter decontaminated", used=config.knows_evaluated)
    _refuse_alone(inputs, "hints", "--hint-level N, from 1 on", used=config.shows_hints)


def _refuse_alone(inputs: Named, role: str, setting: str, *, used: bool) -> None:
    """Raise UsageError for an input without the setting that uses it, or the other way round."""
    if bool(inputs.get(role)) != used:
        raise UsageError(f"--{role} goes with {setting}", hint="give both, or neither")


def check_out(out: str | None) -> None:
    """Raise UsageError if --out is not writable."""
    if out is None:
        return
    path = Path(out).absolute()
    above = next(folder for folder in (path, *path.parents) if folder.exists())
    if not (above.is_dir() or above == path) or not os.access(above, os.W_OK):
        raise UsageError(f"--out {shortened(out)}: {above} cannot be written to", hint="give another path")
    manifest_of_copy(path)


def check_no_input(out: str, inputs: Iterable[str | None]) -> None:
    """Raise UsageError for an --out that is a file which the command reads: writing would replace it."""
    path = Path(out)
    if path.is_file() and any(text and Path(text).is_file() and path.samefile(text) for text in inputs):
        raise UsageError(f"--out {shortened(out)} is an input, and would be replaced", hint="give another path")


def check_table(path: Path, option: str = "--out", kinds: Sequence[str] = (".parquet", ".csv")) -> None:
    """Raise UsageError for a path that no file of some kinds can be written to."""
    if path.suffix not in kinds:
        ends = f"{option} {shortened(str(path))} ends in {path.suffix or 'nothing'}"
        raise UsageError(ends, hint=f"give {' or '.join(kinds)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {shortened(str(path))}: there is no folder {path.parent}", hint="make it first")


def manifest_of_copy(folder: Path) -> Manifest | None:
    """Return the manifest of an artifact copied to a folder, None without one; an error for a broken one."""
    try:
        regular_file(folder, FILE_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return read_manifest(folder, ANOTHER)


def check_components(config: Config) -> None:
    """Refuse components that cannot be used: UsageError for a file that is not there, BadInputError for what is in it.

    Filters of ours see a table without rows, which is enough to refuse settings that contradict each other.
    """
    for chosen in chosen_in(config):
        if isinstance(chosen, RewardConfig):
            check_seen_variables(chosen.variables, f"{chosen.label}: variables")
        if chosen.is_users:
            path, _ = users_file(chosen.name)
            if not path.is_file():
                raise UsageError(f"there is no file {shortened(str(path))}", hint="write path/to/file.py:function")
        try:
            _ = chosen.component
        except DescriptionError as error:
            raise BadInputError(str(error), hint=_nearest(chosen, error)) from None
        if chosen.kind in ("filter", "ranking", "sampler", "hint", "wave", "tracker", "measure"):
            check_reads(chosen, getattr(config, "tracked", {}))


def _nearest(chosen: Chosen, error: DescriptionError) -> str:
    """Return the functions that a file has instead of the one it lacks."""
    if not error.known:
        return "correct the file"
    known = [name for name in error.known if name]
    listed = f"it has {', '.join(known[:_NUM_LISTED])}" if known else "it defines nothing"
    return did_you_mean(chosen.name.rpartition(":")[2], known, listed)


def check_name(name: str, what: str) -> None:
    """Raise UsageError if no folder may be called so."""
    if problem := name_problem(name):
        raise UsageError(f"{what} {shortened(name)!r} {problem}", hint="give it another name")


def name_problem(name: str) -> str:
    """Return the reason that a run cannot have this name, which is that of its folder; empty if it can."""
    faults = {
        "is empty": not name.strip(),
        f"is longer than {_NAME_BYTES} bytes": len(name.encode(errors="replace")) > _NAME_BYTES,
        "holds control characters": any(unicodedata.category(char).startswith("C") for char in name),
        "holds a slash": not {"/", "\\"}.isdisjoint(name),
        "begins with a dot, a dash or a space, or ends with a space": name[:1] in (".", "-") or name != name.strip(),
    }
    return next((fault for fault, is_there in faults.items() if is_there), "")


def bundled(text: str) -> Path | None:
    """The path of the policy or the problems that `bundled` or `bundled:NAME` means; None for another text."""
    if text == "bundled":
        return SAMPLES / "policy"
    name = text.removeprefix("bundled:")
    if name == text:
        return None
    return SAMPLES / name if name == Path(name).name and (SAMPLES / name).is_dir() else SAMPLES / f"{name}.parquet"


def average_of(lake: Path, text: str) -> Path | None:
    """The folder of the moving average that `checkpoints/DIGEST/ema` means; None for another text."""
    reference, _, part = text.rpartition("/")
    if part != "ema" or not REFERENCE.fullmatch(reference):
        return None
    folder = lake / full_name(lake, reference) / part
    if not folder.is_dir():
        raise UsageError(f"{reference} has no moving average", hint="train it with update.ema_decay above 0")
    return folder


def _check_policy(lake: Path, text: str) -> None:
    above, _, below = (text, "", "") if Path(text).is_dir() else text.partition("+")
    folder = policy_folder(lake, above)
    if folder.is_dir() and not any((folder / name).is_file() for name in (CONFIG, ADAPTER_CONFIG)):
        raise UsageError(f"{shortened(text)} has no config.json", hint=WHOLE)
    if folder.is_dir():
        try:
            refuse_broken(folder)
        except FileError as error:
            raise BadInputError(str(error), hint=WHOLE) from None
    if below:
        check_input(lake, below, CHECKPOINTS)


def check_webhook(url: str) -> None:
    """Raise UsageError if this is not an address that can be called over HTTP."""
    if not is_address(url):
        raise UsageError("--notify needs the address of a webhook", hint="such as https://hooks.example.com/T0/B0")


_OF_CANDIDATES, _OF_ROUNDS = (OF_PROBLEM,), (OF_PROBLEM, OF_PLAN, OF_PARTS, OF_MARKS)
"""Beginnings of the names of columns that candidates, and the rows of a round, have beside those that are known."""
_MEASURED = (("problem_id",), ("rollout_id",), ("trace_id",))
"""Keys of measures: of problems, of rollouts, of the texts of a file."""


def check_reads(chosen: Chosen, tracked: Mapping[str, Sequence[str]]) -> None:
    """Refuse a column that candidates, or a round's rows, lack; `tracked` are those of trackers with keys."""
    from gradus.data.curation.candidates import MADE, Candidates, no_candidates  # noqa: PLC0415 - loads Arrow's functions
    from gradus.data.curation.round import RoundRows  # noqa: PLC0415
    from gradus.data.curation.traces import TraceRows  # noqa: PLC0415

    component, begins, known = chosen.component, _OF_CANDIDATES, [*Candidates.known]
    if isinstance(chosen, MeasureConfig) and chosen.of_traces:
        known = [*TraceRows.known]
    elif chosen.kind in ("wave", "tracker") or (isinstance(chosen, MeasureConfig) and not chosen.of_problems):
        begins, known = _OF_ROUNDS, [*RoundRows.known, *known]
        known += [HINT_TEXTS] if chosen.kind == "measure" else []
    if isinstance(chosen, TrackerConfig | MeasureConfig):
        _check_keeper(chosen, RoundRows.known)
    elif chosen.kind == "hint":
        known = [name for name in known if name not in MADE]
    elif chosen.kind == "wave":
        known = ["hint", "stored", "traces", *known]
    named = [split_need(need)[1] if begins is _OF_ROUNDS else need for need in chosen.needs or ()]
    needs = [need for need in named if need not in tracked]
    if alone := next(filter(is_tracked, needs), ""):
        what, hint = "a tracker", "trackers stand in a recipe, and a training keeps them: gradus train RECIPE"
        if chosen.kind == "measure":
            what = "a tracker or measure"
            hint = "a measure sees problems, rollouts or texts alone: combine the columns where they are read"
        raise UsageError(f"{chosen.kind} {chosen.label} needs {alone}, a column of {what}", hint=hint)
    plain = [need for need in needs if not need.startswith(begins)]
    refuse_needs(chosen, plain, list(dict.fromkeys(known)), "".join(f" or {each}NAME" for each in begins))
    if begins is _OF_CANDIDATES:
        _refuse_keys(chosen, {need: tracked[need] for need in chosen.needs or () if need in tracked}, known)
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
