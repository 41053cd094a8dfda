"""Verbs that study what is stored, and sample nothing: methods beside one another, rewards, the response surface."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from gradus.components.settings import MAX_TOKENS
from gradus.data.errors import UsageError
from gradus.data.lake.schema import MAX_SAMPLES
from gradus.flows import parameters
from gradus.flows.cli.options import AsJson, DryRun, Partial, damage, may_wait, options_of, shown
from gradus.flows.console.output import answer, aside, line
from gradus.flows.library import run_calls
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import check_input, check_no_input, check_table

SIZES = (4, 8, 16, 32)
"""Samples of a group among which a plan chooses."""
OfPolicy = Annotated[
    str,
    typer.Option(
        "--policy",
        help="the policy, by the beginning of its digest; the one with most rollouts if left out",
        autocompletion=parameters.artifacts("checkpoints"),
    ),
]


@may_wait
@options_of(run_calls.lab)
def lab(as_json: AsJson = False, **given: Any) -> None:
    """Put methods side by side on the stored rounds of runs: the gradient of each, without a token sampled.

    Of each method: its angle to the others, its signal to noise, clipped and masked tokens, and by how much a step
    raises the mean reward of held-out rollouts. With --then compare the better half is trained, with a verdict.
    """
    from gradus.flows.console.study_tables import render_laboratory

    answer(run_calls.lab(**given), as_json, render_laboratory)


@may_wait
@options_of(run_calls.agree)
def agree(as_json: AsJson = False, **given: Any) -> None:
    """Judge stored rollouts by several rewards, and show where and from which round on their verdicts differ.

    Agreement and Cohen's kappa by round, domain, source and length, the rollouts on which they disagree, and the first
    round whose update would differ. One reward alone is compared with the run's own. Nothing is sampled.
    """
    from gradus.flows.console.study_tables import render_agreement

    answer(run_calls.agree(**given), as_json, render_agreement)


@may_wait
@options_of(run_calls.amend)
def amend(dry_run: DryRun = False, as_json: AsJson = False, **given: Any) -> None:
    """Give a run the rewards that it should have had: train it again from the first update that they change.

    Stored rollouts are judged by both, as by `agree`; nothing is sampled before that round, whose earlier ones are
    reused. With --dry-run: what differs, and what the training would compute.
    """
    from gradus.flows.cli.verbs import train_or_say
    from gradus.flows.console.study_tables import render_agreement

    asked = run_calls.amend_asked(**given)
    found = run_calls.agreed(asked)
    plan = run_calls.amended(asked, found)
    if as_json:
        done = None if plan is None else run_calls.foreseen(plan) if dry_run else run_calls.trained(plan).result
        answer({"agreement": found, "amended": done}, as_json)
        return
    render_agreement(found)
    if plan is None:
        line("every update would be the same: there is nothing to train again")
    else:
        train_or_say(plan, as_json=as_json, dry_run=dry_run)


@may_wait
@options_of(run_calls.bisect)
def bisect(as_json: AsJson = False, **given: Any) -> None:
    """Find the round from which the verifier and the truth part, by few verdicts of a costly auditor.

    Audited are the first round, the last, then the middle of what is between. The auditor is a reward (another
    verifier, a judge), or you: a .jsonl of labels, to which the rows are added that are to be labelled next.
    """
    from gradus.flows.console.study_tables import render_bisected

    answer(run_calls.bisect(**given), as_json, render_bisected)


def surface(
    policy: OfPolicy = "",
    against: Annotated[
        str,
        typer.Option(
            help="another policy beside it, of which few scored rollouts are enough",
            autocompletion=parameters.artifacts("checkpoints"),
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="write every problem, share of its hint and policy here (.parquet, .csv)")
    ] = None,
    tracker: Annotated[
        Path | None, typer.Option(help="write what the tracker `surface` of a training begins with here (.parquet)")
    ] = None,
    partial: Partial = False,
    as_json: AsJson = False,
) -> None:
    """Show the chance of problems to be solved, from easy to hard, and how far hints move the cliff.

    A model of every scored rollout in the lake (ability of the policy, difficulty of the problem, gain by
    share of the hint) predicts each chance to solve, also where nothing was sampled, with an interval.
    """
    from gradus.data.curation.surface.known import learn
    from gradus.flows.console.surface_tables import render_surface
    from gradus.tasks.inspect.surface import counted, picture, write_surface, write_tracker

    if out is not None:
        check_table(out)
    if tracker is not None:
        check_table(tracker, "--tracker", (".parquet",))
    with damage(partial) as on_damage:
        known = learn(counted(Home.from_environment(), aside, on_damage))
        sampler, other = known.sampler(policy), known.sampler(against) if against else None
        if out is not None:
            rows = write_surface(known, out)
            aside(f"{rows:,} rows: {out}")
        if tracker is not None:
            aside(f"{write_tracker(known, sampler, tracker):,} problems: {tracker}")
        answer(picture(known, sampler, other), as_json, render_surface)


def plan(
    problems: Annotated[
        str,
        typer.Option(help="problems: a file with ids or an artifact", autocompletion=parameters.artifacts("problems")),
    ],
    tokens: Annotated[float, typer.Option(min=1, help="completion tokens to spend, such as 2e6")],
    policy: OfPolicy = "",
    samples: Annotated[
        list[int] | None,
        typer.Option("-n", "--samples", min=2, max=MAX_SAMPLES, help="samples of a group; repeatable, one is chosen"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="limit of completion tokens")] = 96,
    seed: Annotated[int, shown(parameters.SEED)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="write the plan here (.parquet, .jsonl), for `begin.plan` of a recipe or `rollout --plan`"),
    ] = None,
    partial: Partial = False,
    as_json: AsJson = False,
) -> None:
    """Plan the problems, hints and group sizes that make the most groups with signal for the tokens.

    A group has signal if it has both right and wrong answers. Chances are those of `gradus surface`, hints
    those in the lake, tokens of a completion the mean of its problem so far. Nothing is started.
    """
    from gradus.data.curation.surface.known import learn
    from gradus.data.lake.store import Store
    from gradus.flows.console.surface_tables import render_plan
    from gradus.tasks.artifacts.resolve import write_rows
    from gradus.tasks.inspect.surface import counted, hints_there, planned, problems_named, rows_planned

    home, sizes = Home.from_environment(), tuple(sorted(set(samples or SIZES)))
    if not math.isfinite(tokens):
        raise UsageError(f"--tokens {tokens} is no number of tokens", hint="give one such as 2e6")
    if out is not None:
        check_table(out, kinds=(".parquet", ".jsonl"))
        check_no_input(str(out), (problems,))
    check_input(home.lake, problems, "problems")
    with damage(partial) as on_damage:
        table = problems_named(Store(home.lake), problems)
        known = learn(counted(home, aside, on_damage), table)
        hints = hints_there(home, aside, on_damage)
        sampler = known.sampler(policy)
        chosen, found = planned(known, table, hints, sampler, tokens, sizes)
        if out is not None:
            rows = rows_planned(chosen, hints, known.samplers[sampler], max_tokens, seed)
            write_rows(rows, out, nulls=False)
            aside(f"{rows.num_rows:,} rows: {out}")
        answer(found, as_json, render_plan)
