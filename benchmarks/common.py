"""Helpers of several benchmarks: the checkout, an environment for its program, ratios round by round, peak memory."""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(home: Path, **extra: str) -> dict[str, str]:
    """The environment of a command of this checkout in a home."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "GRADUS_", "MLFLOW_"))}
    return {**kept, "GRADUS_HOME": str(home), "PYTHONPATH": str(ROOT / "src"), **extra}


def ratio(own: Sequence[float], others: Sequence[float]) -> str:
    """Return the ratio of the others' times, round by round: median, least and most."""
    if not others:
        return "-"
    found = sorted(other / mine for mine, other in zip(own, others, strict=True))
    return f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"


def peak_bytes(*, anew: bool = False) -> int:
    """The peak of this process's resident memory; counted from now on if `anew` (Linux)."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def print_rates(acts: Mapping[str, Callable[[], float]], num_rows: int, turns: int, unit: str) -> None:
    """Run acts in turns and print for each the rows a second, by the median of its turns, and its last result."""
    seconds: dict[str, list[float]] = {name: [] for name in acts}
    means: dict[str, float] = {}
    for _ in range(turns):
        for name, act in acts.items():
            started = time.perf_counter()
            means[name] = act()
            seconds[name].append(time.perf_counter() - started)
    print(f"{'':28}{unit:>14}{'mean reward':>14}")
    for name, taken in seconds.items():
        print(f"{name:28}{num_rows / statistics.median(taken):14,.1f}{means[name]:14.3f}")
