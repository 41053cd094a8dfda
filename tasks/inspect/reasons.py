"""The origin of an artifact: what made it, of what; and why a stage is computed.

The inputs of a result are set beside those of the nearest call that was computed before. A difference in an input is
followed to its origin: "in update lr = 3e-05, before 5e-05".

>>> differences({"config": {"lr": 3e-5}}, {"config": {"lr": 5e-5}})
['lr = 3e-05, before 5e-05']
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import pyarrow.parquet as pq

from gradus.components.settings import FILLED_IN
from gradus.data.errors import CorruptArtifactError
from gradus.data.lake.manifest import Manifest
from gradus.data.lake.schema import TABLES
from gradus.data.lake.store import Ref, Store
from gradus.data.records import Json, JsonObject
from gradus.tasks.formats import short
from gradus.tasks.runs.history import Attempt, Key, Story, key_of, of_call, read_story
from gradus.tasks.runs.records import Label
from gradus.tasks.stages.registry import installed

Identity = JsonObject
NEVER = "nothing like it was computed before"
_NUM_COMPARED = 20


class Explained(Label):
    """An attempt, and why it was computed or reused."""

    status: str
    why: str


def reason(store: Store, identity: Identity, inputs: Mapping[str, Sequence[str]], before: Sequence[Attempt]) -> str:
    """Return one phrase: what differs from the nearest of the calls before, by name."""
    known = [(each, _manifest(store, Ref.parse(each["output"]))) for each in before[:_NUM_COMPARED]]
    kept = [(each, manifest) for each, manifest in known if manifest is not None and manifest.identity]
    if not kept:
        return f"what run {known[0][0]['run']} computed is gone from the lake" if known else NEVER
    nearest, manifest = min(kept, key=lambda pair: num_differences(identity, pair[1].identity))
    found = _explained(store, identity, inputs, manifest, frozenset())
    return f"{'; '.join(found)} (run {nearest['run']})" if found else f"asked for again (as in run {nearest['run']})"


def _explained(
    store: Store, identity: Identity, inputs: Mapping[str, Sequence[str]], old: Manifest, seen: frozenset[str]
) -> list[str]:
    """Return differences in settings and code, or else in the inputs, followed to their origin."""
    found = differences(identity, old.identity)
    if found:
        return found
    phrases = [
        phrase
        for role in changed_inputs(identity, old.identity)
        for phrase in _of_input(store, role, inputs.get(role, ()), old.parents.get(role, ()), seen)
    ]
    return list(dict.fromkeys(phrases))  # rollouts and their scores go back to the same update


def _of_input(store: Store, role: str, new: Sequence[str], old: Sequence[str], seen: frozenset[str]) -> list[str]:
    """Return the reason that an input differs, by its own inputs; nothing if it is the same and its name counts."""
    if list(new) == list(old):
        return []
    if len(new) != len(old):
        return [f"it has {len(new)} inputs of {role}, before {len(old)}"]
    for ours, theirs in zip(new, old, strict=True):
        if ours == theirs or ours in seen:
            continue
        made, before = (_manifest(store, Ref.parse(text)) for text in (ours, theirs))
        if made is None or before is None or not made.stage or not before.stage:
            return [f"its {role} differs ({short(ours)}, before {short(theirs)})"]
        deeper = _explained(store, made.identity, made.parents, before, seen | {ours})
        if deeper:
            return [phrase if phrase.startswith("in ") else f"in {made.stage} {phrase}" for phrase in deeper]
    return [f"its {role} differs"]


def _manifest(store: Store, ref: Ref) -> Manifest | None:
    try:
        return store.manifest(ref)
    except CorruptArtifactError:
        return None


def explain(store: Store, known: Sequence[Attempt], folder: Path, chosen: Callable[[Key], bool]) -> list[Explained]:
    """Return what became of the chosen calls of a run, and why: a row an attempt, in the order they began."""
    rows: list[Explained] = []
    story = read_story(folder)
    for attempt in story.rows.values():
        if not chosen(key := key_of(attempt)):
            continue
        before = [each for each in of_call(known, key) if each["started"] < attempt["started"]]
        rows.append(
            {
                "stage": attempt["stage"],
                "round": attempt["round"],
                "purpose": attempt["purpose"],
                "status": attempt["status"],
                "output": attempt["output"],
                "why": _of_attempt(store, attempt, story, folder.name, before),
            }
        )
    return rows


def _of_attempt(store: Store, attempt: Attempt, story: Story, run: str, before: Sequence[Attempt]) -> str:
    manifest = _manifest(store, Ref.parse(attempt["output"]))
    if attempt["status"] == "reused":
        same = [each for each in before if each["output"] == attempt["output"]]
        made = f"run {same[0]['run']}" if same and same[0]["run"] != run else "an earlier start of this run"
        now = story.inputs.get(attempt["output"], {})
        anew = [role for role, refs in now.items() if manifest and list(refs) != manifest.parents.get(role)]
        if anew:  # it was made of other artifacts than it would be made of now
            return f"the same settings and code as in {made}; it reads nothing that differs in its {' and '.join(anew)}"
        return f"the same settings, inputs and code as in {made}"
    if attempt["status"] in ("failed", "killed", "cancelled"):
        return attempt["error"] or f"it was {attempt['status']}"
    if manifest is None:
        return "its artifact is gone from the lake"
    return reason(store, manifest.identity, manifest.parents, before)


_MISSING = object()


def differences(new: Identity, old: Identity) -> list[str]:
    """Return what differs in settings, files, versions and seed, a phrase each; inputs are left out."""
    ours, theirs = flat(_settings(new)), flat(_settings(old))
    paths = sorted(ours.keys() | theirs.keys())
    both = ((path, ours.get(path, _MISSING), theirs.get(path, _MISSING)) for path in paths)
    found = (_phrase(path, now, before, new) for path, now, before in both if now != before)
    return list(dict.fromkeys(filter(None, found)))


def changed_inputs(new: Identity, old: Identity) -> list[str]:
    """Return the roles of inputs that are not the same."""
    ours, theirs = _table(new, "parents"), _table(old, "parents")
    return [role for role in sorted(ours.keys() | theirs.keys()) if ours.get(role) != theirs.get(role)]


def num_differences(new: Identity, old: Identity) -> int:
    """Return how far two identities are apart, inputs included."""
    return len(differences(new, old)) + len(changed_inputs(new, old))


def _table(identity: Identity, key: str) -> JsonObject:
    found = identity.get(key)
    return found if isinstance(found, Mapping) else {}


def _settings(identity: Identity) -> JsonObject:
    return {key: value for key, value in identity.items() if key not in ("parents", "stage")}


def flat(value: Json, path: str = "") -> dict[str, Json]:
    """Nested values by dotted path."""
    if isinstance(value, Mapping) and value:
        items = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list | tuple) and value:
        items = [(str(index), inner) for index, inner in enumerate(value)]
    else:
        return {path: value}
    return {key: leaf for name, inner in items for key, leaf in flat(inner, f"{path}.{name}".lstrip(".")).items()}


def _phrase(path: str, new: object, old: object, identity: Identity) -> str:
    """One difference in words; empty for what only follows from another one."""
    kind, _, name = path.partition(".")
    if kind == "code":
        return _of_code(name, new, old)
    if kind == "version":
        return f"gradus computes this stage otherwise since its version {new} (before {old})"
    if kind in ("config", "facts"):
        return _of_setting(name, new, old, _table(identity, kind))
    return _plain(path, new, old)


def _of_code(name: str, new: object, old: object) -> str:
    """A version that differs; a component that only one side names follows from its setting."""
    if _MISSING in (new, old):
        return ""
    kind, _, which = name.partition("/")
    if kind == "library":
        return f"{which} {new} is installed, before {old}"
    return f"gradus computes {kind} {which} otherwise since its version {new} (before {old})"


def _of_setting(name: str, new: object, old: object, settings: JsonObject) -> str:
    *above, last = name.split(".")
    if last == "source_sha256":
        if _MISSING in (new, old):  # a file that only one side names follows from its setting
            return ""
        where = _at(settings, above)
        named = where.get("name") or where.get("source") or "of the source"
        return f"the content of the file {named} changed"
    if len(above) < 2 or above[-1] not in FILLED_IN:
        return _plain(name, new, old)
    if above[-1] == "libraries":
        return _plain(f"the library {last} of a reward", new, old)
    how = "is new" if old is _MISSING else "is no longer used" if new is _MISSING else "changed"
    return f"the module {last} of a reward {how}"


def _at(body: Json, path: Sequence[str]) -> JsonObject:
    for part in path:
        if isinstance(body, Mapping):
            body = body.get(part)
        elif isinstance(body, list | tuple) and part.isdigit() and int(part) < len(body):
            body = body[int(part)]
    return body if isinstance(body, Mapping) else {}


def _plain(name: str, new: object, old: object) -> str:
    now = "is not set" if new is _MISSING else f"= {_shown(new)}"
    return f"{name} {now}, before {_shown(old)}"


def _shown(value: object) -> str:
    return "not set" if value is _MISSING else '""' if value == "" else str(value)


class ArtifactStory(TypedDict):
    """The answer of `gradus show ARTIFACT --json`; `made_of` are artifacts by role, `columns` types by name."""

    artifact: str
    stage: str
    rows: int
    bytes: int
    made_of: dict[str, list[str]]
    settings: JsonObject
    columns: dict[str, str]
    out: str


def describe(store: Store, ref: Ref) -> ArtifactStory:
    """Return the facts of an artifact; raise CorruptArtifactError for one that is damaged."""
    manifest = store.manifest(ref)
    installed()  # their tables are the lake's
    shards = manifest.shards if ref.table in TABLES else []
    columns = pq.read_schema(store.verified(ref, shards[:1])[0]) if shards else []
    return {
        "artifact": str(ref),
        "stage": str(manifest.identity.get("stage", "")),
        "rows": manifest.rows if shards else 0,
        "bytes": sum(entry.bytes for entry in manifest.files),
        "made_of": manifest.parents,
        "settings": manifest.config,
        "columns": {field.name: str(field.type) for field in columns},
        "out": str(store.path(ref)),
    }
