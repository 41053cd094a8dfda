"""Keep the digests of what our versions cover: what there is, what is recorded, and what is wrong between the two.

    python -m tests.code_versions                       # after a version was raised, or a component added or removed
    python -m tests.code_versions --same-results WHY    # after a change that leaves every result as it was

The record is tests/golden/code_versions.json; a reason stays in it until the entry's version is raised.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gradus.components import KINDS
from gradus.components.description import Component
from gradus.components.registry import components
from gradus.tasks.identity.versions import ENGINES as ENGINE_VERSIONS
from gradus.tasks.identity.versions import SHARED
from gradus.tasks.stages.registry import STAGES
from tests.code_closure import Tree

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).parent / "golden" / "code_versions.json"

ENGINES = {
    "transformers": "gradus.models.engines.hf.HfEngine",
    "vllm": "gradus.models.engines.vllm.VllmEngine",
    "openai": "gradus.models.engines.server.ServerEngine",
}
STORE = (
    "gradus.data.lake.store",
    "gradus.data.lake.writer",
    "gradus.data.lake.manifest",
    "gradus.data.lake.names",
    "gradus.tasks.stages.context",
)
"""How artifacts are written and read, whoever makes them."""


def _ours() -> dict[str, Component]:
    """Every component of ours by kind/name."""
    return {
        f"{kind}/{name}": each for kind in KINDS for name, each in components(kind).items() if not each.distribution
    }


COMPONENTS = _ours()

LIMITS = {
    **{f"{each.module}.{each.function}": each.kind for each in COMPONENTS.values()},
    **dict.fromkeys(ENGINES.values(), "engine"),
    **dict.fromkeys(STORE, "shared"),
}
"""Where the closure of a stage ends: what lies behind has a version of its own."""

Entry = dict[str, Any]


def versions() -> dict[str, int]:
    """Every version in the code, by stage/NAME or KIND/NAME."""
    stages = {f"stage/{spec.name}": spec.version for spec in STAGES.values()}
    engines = {f"engine/{name}": version for name, version in ENGINE_VERSIONS.items()}
    return {**stages, **engines, **SHARED, **{label: each.version for label, each in COMPONENTS.items()}}


def roots() -> dict[str, list[str]]:
    """What each version covers: dotted names of definitions or modules."""
    found = {f"stage/{name}": [spec.run.replace(":", ".")] for name, spec in STAGES.items()}
    found |= {f"engine/{name}": [root] for name, root in ENGINES.items()}
    found |= {label: [f"{each.module}.{each.function}"] for label, each in COMPONENTS.items()}
    return found | {"shared/store": list(STORE)}


def digests(root: Path = ROOT) -> dict[str, str]:
    """The digest of everything that each version covers, of the source below a folder."""
    tree = Tree(root)
    found: dict[str, str] = {}
    for label, covered in roots().items():
        kind = label.partition("/")[0]
        limits = {dotted: other for dotted, other in LIMITS.items() if other != kind}
        found[label] = "".join(tree.digest(dotted, limits) for dotted in covered)
    return found


def wrongs(now: dict[str, int], digest: dict[str, str], record: dict[str, Entry]) -> dict[str, str]:
    """What does not agree between versions, code and record: label -> sentence."""
    found: dict[str, str] = {}
    for label in sorted({*now, *digest, *record}):
        entry = record.get(label)
        if label not in digest or label not in now:
            found[label] = "vanished" if label in record else "has code or a version, not both"
        elif entry is None:
            found[label] = "is new"
        elif entry["version"] == now[label] and entry["digest"] != digest[label]:
            found[label] = "changed and its version did not"
        elif entry["version"] != now[label]:
            same = entry["digest"] == digest[label]
            found[label] = "has another version and the same code" if same else "has another version, not yet recorded"
    return found


def renewed(now: dict[str, int], digest: dict[str, str], record: dict[str, Entry], why: str) -> dict[str, Entry]:
    """The record brought up to date; ValueError for a version or code that moved alone, unless a reason is given."""
    alone = [label for label, wrong in wrongs(now, digest, record).items() if wrong in ALONE]
    if alone and not why:
        raise ValueError(", ".join(alone))
    found: dict[str, Entry] = {}
    for label in sorted(set(now) & set(digest)):
        old = record.get(label, {})
        entry = {"version": now[label], "digest": digest[label]}
        reason = why if label in alone else old.get("why", "") if old.get("version") == now[label] else ""
        found[label] = entry | ({"why": reason} if reason else {})
    return found


ALONE = ("changed and its version did not", "has another version and the same code")

ADVICE = """
Raise the version where a result changes for the same inputs and settings (tasks/stages/registry.py for a stage,
`version` of @component for a component, tasks/identity/versions.py for an engine) and run
`python -m tests.code_versions`; where no result changes, run `python -m tests.code_versions --same-results "why"`."""


def read() -> dict[str, Entry]:
    """The record as it lies on disk."""
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


def main() -> None:
    """Bring the record up to date, or refuse."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--same-results", default="", metavar="WHY")
    why = parser.parse_args().same_results
    try:
        record = renewed(versions(), digests(), read(), why)
    except ValueError as error:
        sys.exit(f"changed without its version, or the other way round: {error}{ADVICE}")
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
