"""The page of a round in Prefect: what its stages measured, what they cost and where their artifacts are.

Names and numbers of ours alone stand in it: Prefect renders Markdown, and what a policy wrote may be any.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import cast

from prefect.artifacts import create_markdown_artifact

from gradus.data.lake.store import Store
from gradus.tasks.runtime.calls import Outcome

KEY = "round"
"""One key for all rounds: Prefect shows its artifacts as versions of one page."""
FIGURES = {
    "reward/mean": "mean reward",
    "reward/frac_zero_std_groups": "groups without variance",
    "data/pass_rate_mean": "mean pass rate of the problems measured in it",
    "length/mean": "mean completion length, tokens",
    "length/truncated_frac": "truncated completions",
    "verifier/error_frac": "rows that could not be judged",
    "policy/entropy": "entropy, nats",
    "policy/kl_old": "KL to the policy before the update, nats a token",
    "policy/grad_norm": "gradient norm before clipping",
    "policy/clip_frac_high": "tokens clipped from above",
    "policy/clip_frac_low": "tokens clipped from below",
    "policy/lr": "learning rate",
    "mismatch/logp_diff_mean": "sampler and trainer apart, nats a token",
    "mismatch/kl": "KL of sampler and trainer, nats a token",
}
"""The metrics of a round that are shown, in this order, and their names in words."""


def publish_round(run: str, store: Store, outcome: Outcome, earlier: Sequence[Outcome]) -> None:
    """Publish the page of the round that an update ends; nothing for other stages. Inside the update's task."""
    if (outcome.stage, outcome.purpose) != ("update", "train") or not outcome.round:
        return
    of_round = [*(each for each in earlier if each.round == outcome.round), outcome]
    title = f"round {outcome.round} of {run}"
    create_markdown_artifact(round_page(title, run, store, of_round), key=KEY, description=title)


def round_page(title: str, run: str, store: Store, outcomes: Sequence[Outcome]) -> str:
    """Return the page of a round in Markdown, from the outcomes of its stages in their order.

    Figures are those of the policy's own attempts, without hints.
    """
    measured: dict[str, float] = {}
    for outcome in outcomes:
        if outcome.purpose == "train":
            measured |= cast("Mapping[str, float]", outcome.report.get("metrics", {}))
    figures = [f"| {words} | {measured[name]:.4g} |" for name, words in FIGURES.items() if name in measured]
    stages = [
        f"| {each.label} | {'reused' if each.reused else f'{each.seconds:.1f} s'} | {_count(each, 'rows')} "
        f"| {_count(each, 'tokens', 'tokens_trained')} | `{store.path(each.ref)}` |"
        for each in outcomes
    ]
    lines = [
        f"## {title}",
        "",
        "| | |",
        "|---|---|",
        *figures,
        "",
        "| stage | time | rows | tokens | artifact |",
        "|---|---|---|---|---|",
        *stages,
        "",
        f"`gradus show {shlex.quote(run)}` lists every stage; `gradus ui` opens its metrics and samples in MLflow.",
    ]
    return "\n".join(lines)


def _count(outcome: Outcome, *names: str) -> str:
    """The first of the counts that a stage reported; empty if it reported none."""
    summary: Mapping[str, object] = outcome.summary
    found = [summary[name] for name in names if isinstance(summary.get(name), int)]
    return f"{found[0]:,}" if found else ""
