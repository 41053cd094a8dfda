"""Pass rates of a policy by the difficulty tables of the lake, and the lengths of its completions."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Ints, bools, floats, ints, nulls, one_array, pc, positions, ragged, take_or_null
from gradus.data.errors import CorruptArtifactError
from gradus.data.lake.schema import DIFFICULTY, OWN, ROLLOUTS
from gradus.data.lake.store import Ref, Store

_COLUMNS = ("problem_id", "n", "k", "policies")


@dataclass(frozen=True)
class KnownRates:
    """Judged rollouts n and right ones k of each problem (P,), n = 0 if none is known."""

    n: Ints
    k: Ints
    tables: tuple[Ref, ...]
    """The difficulty tables that were read."""


def rates_in(store: Store, difficulty: Ref, problem_ids: pa.Array) -> KnownRates:
    """Return the counts of one table for problems (P,), of whichever policy it was measured with."""
    return _merged(problem_ids, [(difficulty, store.read(difficulty, ["problem_id", "n", "k"]))])


def rates_of(store: Store, policy: Ref, temperature: float, problem_ids: pa.Array) -> KnownRates:
    """Return the counts of all tables of the lake for problems (P,), with a policy that sampled at a temperature.

    Tables of a run extend each other, so that their counts cannot be added: of each problem the largest n counts.
    Tables whose rollouts are not in the lake are left out, as their temperature is unknown, and damaged ones.
    """
    found: list[tuple[Ref, pa.Table]] = []
    for ref in _tables(store):
        with contextlib.suppress(CorruptArtifactError):  # of another run: no reason to forecast nothing
            if _is_by(store, ref, policy, temperature):
                found.append((ref, _of_policy(store.read(ref, _COLUMNS), policy)))
    return _merged(problem_ids, found)


def tokens_of(store: Store, tables: Sequence[Ref]) -> float | None:
    """Return the mean tokens of the completions that tables were measured by; None if no token ids are there.

    Completions with a hint, of another's prompt, and texts that were given are left out.
    """
    total = num = 0
    for ref in dict.fromkeys(each for table in tables for each in _rollouts(store, table)):
        rows = store.read(ref, ["completion_tokens", "hint_level", "origin", "messages"])
        bare = bools(pc.equal(pc.coalesce(ROLLOUTS.column(rows, "origin"), OWN), OWN))
        bare &= (ints(rows.column("hint_level")) == 0) & nulls(ROLLOUTS.column(rows, "messages"))
        lengths = floats(pc.list_value_length(one_array(rows.column("completion_tokens"))))[bare]
        total, num = total + np.nansum(lengths), num + int((~np.isnan(lengths)).sum())
    return float(total / num) if num else None


def _merged(problem_ids: pa.Array, found: Sequence[tuple[Ref, pa.Table]]) -> KnownRates:
    n = k = np.zeros(len(problem_ids), dtype=np.int64)
    read: list[Ref] = []
    for ref, rows in found:
        at = positions(problem_ids, rows.column("problem_id"))
        new_n, new_k = (ints(take_or_null(rows.column(name), at)) for name in ("n", "k"))
        if (more := new_n > n).any():
            n, k = np.where(more, new_n, n), np.where(more, new_k, k)
            read.append(ref)
    return KnownRates(n, k, tuple(read))


def _tables(store: Store) -> list[Ref]:
    """Return the difficulty tables of the lake in the order of their names."""
    folder = store.root / DIFFICULTY.name
    named = (Ref.found(DIFFICULTY.name, path.name) for path in sorted(folder.iterdir())) if folder.is_dir() else ()
    return [ref for ref in named if ref is not None]


def _is_by(store: Store, difficulty: Ref, policy: Ref, temperature: float) -> bool:
    """Return whether the newest rollouts of a table were sampled by a policy at a temperature."""
    rollouts = _rollouts(store, difficulty)
    by = {text for each in rollouts for text in store.manifest(each).parents.get("policy", [])}
    return str(policy) in by and any(_temperature(store, each) == temperature for each in rollouts)


def _rollouts(store: Store, difficulty: Ref) -> list[Ref]:
    """Return the rollouts that a table was measured by, those of them that are there; empty for a damaged table."""
    manifest = store.find(difficulty)
    named = manifest.parents.get("rollouts", []) if manifest is not None else []
    return [ref for ref in map(Ref.parse, named) if store.find(ref) is not None]


def _temperature(store: Store, rollouts: Ref) -> float | None:
    """Return the temperature of the first row, by the plan if it is there: a small table, which is sooner verified."""
    plans = [Ref.parse(text) for text in store.manifest(rollouts).parents.get("plan", [])]
    source = next((ref for ref in plans if store.find(ref) is not None), rollouts)
    column = store.read(source, ["temperature"]).column("temperature")
    return column[0].as_py() if len(column) else None


def _of_policy(rows: pa.Table, policy: Ref) -> pa.Table:
    """Return the rows whose n and k are of a policy: the newest one that measured them."""
    offsets, values = ragged(rows.column("policies"))
    last = np.where(np.diff(offsets) > 0, offsets[1:] - 1, -1)
    return rows.filter(pc.equal(take_or_null(values, last), pa.scalar(policy.digest)))
