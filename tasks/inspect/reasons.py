"""Reasons that a stage is computed: the inputs of its result beside the nearest call that was computed before.

A difference in an input is followed to its origin: "in update lr = 3e-05, before 5e-05".
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gradus.data.errors import CorruptArtifactError
from gradus.data.lake.manifest import Manifest
from gradus.data.lake.store import Ref, Store
from gradus.tasks.formats import short
from gradus.tasks.identity.differences import Identity, changed_inputs, differences, num_differences
from gradus.tasks.runs.history import Attempt, Story, read_story
from gradus.tasks.runs.precedents import Key, Precedent, of_call
from gradus.tasks.runs.records import Label

NEVER = "nothing like it was computed before"
_NUM_COMPARED = 20


class Explained(Label):
    """An attempt, and why it was computed or reused."""

    status: str
    why: str


def reason(store: Store, identity: Identity, inputs: Mapping[str, Sequence[str]], before: Sequence[Precedent]) -> str:
    """Return one phrase: what differs from the nearest of the calls before, by name."""
    known = [(each, _manifest(store, each.output)) for each in before[:_NUM_COMPARED]]
    kept = [(each, manifest) for each, manifest in known if manifest is not None and manifest.identity]
    if not kept:
        return f"what run {known[0][0].run} computed is gone from the lake" if known else NEVER
    nearest, manifest = min(kept, key=lambda pair: num_differences(identity, pair[1].identity))
    found = _explained(store, identity, inputs, manifest, frozenset())
    return f"{'; '.join(found)} (run {nearest.run})" if found else f"asked for again (as in run {nearest.run})"


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


def _made_anew(store: Store, output: str, inputs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the roles in which a reused artifact was made of other artifacts than it would be made of now."""
    manifest = _manifest(store, Ref.parse(output))
    before = manifest.parents if manifest else inputs
    return [role for role, refs in inputs.items() if list(refs) != before.get(role)]


def explain(store: Store, known: Sequence[Precedent], folder: Path, chosen: Callable[[Key], bool]) -> list[Explained]:
    """Return what became of the chosen calls of a run, and why: a row an attempt, in the order they began."""
    rows: list[Explained] = []
    story = read_story(folder)
    for attempt in story.rows.values():
        key = (attempt["stage"], attempt["round"], attempt["purpose"])
        if not chosen(key):
            continue
        before = [each for each in of_call(known, key) if each.started < attempt["started"]]
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


def _of_attempt(store: Store, attempt: Attempt, story: Story, run: str, before: Sequence[Precedent]) -> str:
    same = [each for each in before if str(each.output) == attempt["output"]]
    if attempt["status"] == "reused":
        made = f"run {same[0].run}" if same and same[0].run != run else "an earlier start of this run"
        anew = _made_anew(store, attempt["output"], story.inputs.get(attempt["output"], {}))
        if anew:
            return f"the same settings and code as in {made}; it reads nothing that differs in its {' and '.join(anew)}"
        return f"the same settings, inputs and code as in {made}"
    if attempt["status"] in ("failed", "killed", "cancelled"):
        return attempt["error"] or f"it was {attempt['status']}"
    manifest = _manifest(store, Ref.parse(attempt["output"]))
    if manifest is None:
        return "its artifact is gone from the lake"
    return reason(store, manifest.identity, manifest.parents, before)
