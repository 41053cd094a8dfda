"""Microseconds per 100,000 tokens of each registered loss, beside plain torch forms and TRL's.

    OMP_NUM_THREADS=1 python benchmarks/objectives.py [NAME...] [--rounds 41] [--tokens 100000]

Timed is a loss with its metrics, forward and backward to all of the policy's columns that it reads. The plain form is
the formula written down with the same metrics, without rows or declarations; a loss that has none here is timed alone.
TRL's is `GRPOTrainer._compute_loss` on the same tokens, padded to the longest row as TRL does it, with its metrics and
its reduction to one number, wherever `trl` can be imported (benchmarks/trl.txt); otherwise its column is empty.
All forms of a loss take turns in one process, in changing order; a ratio is the median of those of each round. Exits
with 1 if numbers differ, or if a loss takes more than 1.1 times its plain form.
"""

import argparse
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import numpy as np  # noqa: E402 - the checkout comes first
import torch  # noqa: E402
from plain_losses import PLAIN  # noqa: E402
from torch import Tensor  # noqa: E402

from gradus.components.registry import components, function_of  # noqa: E402
from gradus.components.rows import Marks  # noqa: E402
from gradus.models.objectives.columns import COLUMNS  # noqa: E402
from gradus.models.objectives.rows import Rows  # noqa: E402

LIMIT = 1.1
SETTINGS: Mapping[str, dict[str, Any]] = {"entropy_band": {"mean": 1.0}}
"""Settings by loss, without which there is little to compute."""
TRL: Mapping[str, dict[str, Any]] = {
    "clip": {"loss_type": "bnpo", "importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 0.28},
    "gspo": {"loss_type": "bnpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_type": "cispo", "importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo", "importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 0.2},
}
Timed = Callable[[], Tensor]


def example(num_tokens: int) -> Rows:
    """Rows of 100 to 400 tokens with every column that a loss can read."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(100, 401, (num_tokens // 100,), generator=generator)
    lengths = lengths[: int((lengths.cumsum(0) < num_tokens).sum())]
    lengths = torch.cat([lengths, num_tokens - lengths.sum(dim=0, keepdim=True)])
    number = len(lengths)
    now = -torch.rand(num_tokens, generator=generator).mul(3.0)
    of_tokens = {"now.logp": now}
    for name, column in COLUMNS.items():
        if column.axis == "token" and name not in of_tokens:
            of_tokens[name] = now + 0.2 * torch.randn(num_tokens, generator=generator)
        elif column.axis == "vocabulary":
            of_tokens[name] = torch.log_softmax(torch.randn(num_tokens, 32, generator=generator), -1) - 0.1
    of_tokens |= {"now.entropy": -now, "advantage": torch.randn(number, generator=generator)}
    of_tokens["advantage"] = of_tokens["advantage"].repeat_interleave(lengths)
    reward = torch.randint(0, 2, (number,), generator=generator).double()
    of_rows: dict[str, Any] = {
        "reward": reward,
        "correct": reward,
        "group": torch.arange(number) // 8,
        "length": lengths,
    }
    of_rows["origin"] = np.array(["own"] * number)
    # As a measure has it: float64, missing for the rows that nothing was shown.
    shown = now.double() + 0.2 * torch.randn(num_tokens, generator=generator)
    of_tokens["privileged.logp"] = torch.where((reward > 0).repeat_interleave(lengths), shown, torch.nan)
    return Rows(of_rows, of_tokens, lengths, marks={"marks.sentence": sentences(lengths)})


def sentences(lengths: torch.Tensor, num_tokens: int = 20) -> Marks:
    """Sentences of 20 tokens and what is left, end to end."""
    count = (lengths + num_tokens - 1) // num_tokens
    row = torch.arange(len(lengths)).repeat_interleave(count)
    start = num_tokens * (torch.arange(len(row)) - (count.cumsum(0) - count)[row])
    end = torch.minimum(start + num_tokens, lengths[row])
    return Marks(row, start, end, torch.full((len(row),), torch.nan).double(), np.array([None] * len(row)))


def with_leaves(rows: Rows) -> tuple[Rows, list[Tensor]]:
    """The rows, and the columns of the policy, each a leaf with a gradient."""
    named = [name for name, column in COLUMNS.items() if name.startswith("now.") and column.axis != "row"]
    leaves = {name: rows[name].clone().requires_grad_() for name in named}
    return rows.adding(of_tokens=leaves), list(leaves.values())


def backward(loss: Callable[[], Tensor], leaves: list[Tensor]) -> Timed:
    """Forward and backward; the mean of the loss."""

    def timed() -> Tensor:
        for leaf in leaves:
            leaf.grad = None
        found = loss()
        found.backward()
        return found.detach()

    return timed


def ours(name: str, rows: Rows) -> Timed:
    component = components("loss")[name]
    settings = dict(component.settings(**SETTINGS.get(name, {})))
    function = function_of(component)
    whole, leaves = with_leaves(rows)
    seen = whole.reading(frozenset(component.needs or whole.columns), f"loss {name}")
    _ = rows.row  # numbers of rows are made once for all losses of a pack

    def loss() -> Tensor:
        found = function(seen, **settings)[0]
        return (found if component.per != "row" else found[whole.row]).mean()

    return backward(loss, leaves)


def plain(name: str, rows: Rows) -> Timed:
    whole, leaves = with_leaves(rows)
    columns = {each: whole[each] for each in whole.columns} | {"mask": rows.mask}
    columns["marks.sentence"] = whole.marks("sentence")

    def loss() -> Tensor:
        return PLAIN[name](columns, whole.row, whole.lengths)[0].mean()

    return backward(loss, leaves)


def trl(name: str, rows: Rows) -> Timed:
    """TRL's loss on padded rows; its trainer has what the method reads, and no model."""
    from trl import GRPOTrainer  # noqa: PLC0415 - where it is installed

    whole, leaves = with_leaves(rows)
    at = torch.arange(int(rows.lengths.max()))
    mask = (at < rows.lengths[:, None]).float()

    def padded(values: Tensor) -> Tensor:
        return torch.zeros_like(mask).masked_scatter(mask.bool(), values)

    logp = padded(rows["now.logp"]).requires_grad_()
    entropy = padded(rows["now.entropy"])
    leaves.append(logp)
    given = TRL[name]
    itself = SimpleNamespace(
        **given,
        args=SimpleNamespace(
            delta=None, use_bias_correction_kl=False, sapo_temperature_pos=1.0, sapo_temperature_neg=1.05
        ),
        accelerator=SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1),  # noqa: ARG005
        model=SimpleNamespace(training=False),
        beta=0.0,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, entropy, None),
    )
    ids = torch.zeros(len(mask), 1, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids,
        "prompt_mask": ids,
        "completion_ids": mask.long(),
        "completion_mask": mask,
        "advantages": padded(rows["advantage"])[:, 0].clone(),
        "old_per_token_logps": padded(rows["old.logp"]),
        "num_items_in_batch": mask.sum(),
    }
    del whole
    return backward(lambda: GRPOTrainer._compute_loss(itself, None, inputs), leaves)  # noqa: SLF001 - the loss is nowhere else


def timed(forms: Mapping[str, Timed], rounds: int) -> dict[str, list[float]]:
    """Seconds of each form in each round, the first of which is not counted."""
    found: dict[str, list[float]] = {form: [] for form in forms}
    names = list(forms)
    for index in range(rounds + 1):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            begin = time.perf_counter()
            forms[name]()
            found[name].append(time.perf_counter() - begin)
    return {name: seconds[1:] for name, seconds in found.items()}


def ratio(first: list[float], second: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="losses; all without any")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--tokens", type=int, default=100_000)
    options = parser.parse_args()
    names, rows, failed = options.names or list(components("loss")), example(options.tokens), list[str]()
    try:
        import trl as _installed  # noqa: PLC0415 - where it is installed

        version = f"TRL {_installed.__version__}"
    except ImportError:
        version = ""
    threads = f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}, {torch.get_num_threads()} threads"
    print(f"{options.tokens:,} tokens, {rows.num_rows} rows, float32, {options.rounds} rounds; {threads}; ", end="")
    print(f"torch {torch.__version__}; {version or 'no TRL'}; load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    print("\n| loss | us | plain torch, us | ratio | TRL, us | ratio |\n|---|---|---|---|---|---|")
    for name in names:
        if odd := {each for each in components("loss")[name].needs or () if each not in rows}:
            print(f"| {name} | not timed: it reads {', '.join(sorted(odd))} | | | | |")
            continue
        forms = {"ours": ours(name, rows)}
        forms |= {"plain": plain(name, rows)} if name in PLAIN else {}
        forms |= {"trl": trl(name, rows)} if version and name in TRL else {}
        values = {form: float(run()) for form, run in forms.items() if form != "trl" or name in ("clip", "gspo")}
        if name != "gspo":  # TRL's mean over rows is that over tokens only for a loss of tokens
            odd = {form for form, value in values.items() if abs(value - values["ours"]) > 1e-4 * (1 + abs(value))}
            failed += [f"{name}: {form} is {values[form]}, ours {values['ours']}" for form in sorted(odd)]
        seconds = timed(forms, options.rounds)
        cells = [f"{1e6 * statistics.median(seconds['ours']) * 100_000 / options.tokens:,.0f}"]
        for form in ("plain", "trl"):
            if form in seconds:
                times = ratio(seconds["ours"], seconds[form])
                cells += [f"{1e6 * statistics.median(seconds[form]) * 100_000 / options.tokens:,.0f}", f"{times:.2f}"]
                failed += (
                    [f"{name} takes {times:.2f} times its plain form"] if form == "plain" and times > LIMIT else []
                )
            else:
                cells += ["", ""]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(*(f"\n{each}" for each in failed), file=sys.stderr, end="\n" if failed else "")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
