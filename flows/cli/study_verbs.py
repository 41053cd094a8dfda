"""Verbs that study stored rounds of runs: methods beside one another, and rewards; neither samples a token."""

from typing import Any

from gradus.flows.cli.options import AsJson, DryRun, may_wait, options_of
from gradus.flows.console.output import answer, line
from gradus.flows.library import run_calls


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
