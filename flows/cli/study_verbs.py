"""Verbs that study stored rounds of runs: methods beside one another, and rewards; neither samples a token."""

from typing import Any

from gradus.flows.agreement.asked import agree_asked
from gradus.flows.cli.options import AsJson, may_wait, options_of
from gradus.flows.console.output import answer
from gradus.flows.laboratory.asked import lab_asked
from gradus.flows.library import run_calls


@may_wait
@options_of(run_calls.lab)
def lab(as_json: AsJson = False, **given: Any) -> None:
    """Put methods side by side on the stored rounds of runs: the gradient of each, without a token sampled.

    Of each method: its angle to the others, its signal to noise, clipped and masked tokens, and by how much a step
    raises the mean reward of held-out rollouts. With --then compare the better half is trained, with a verdict.
    """
    from gradus.flows.console.laboratory_tables import render_laboratory

    answer(run_calls.looked_at(lab_asked(**given)), as_json, render_laboratory)


@may_wait
@options_of(run_calls.agree)
def agree(as_json: AsJson = False, **given: Any) -> None:
    """Judge stored rollouts by several rewards, and show where and from which round on their verdicts differ.

    Agreement and Cohen's kappa by round, domain, source and length, the rollouts on which they disagree, and the first
    round whose update would differ. One reward alone is compared with the run's own. Nothing is sampled.
    """
    from gradus.flows.console.agreement_tables import render_agreement

    answer(run_calls.agreed(agree_asked(**given)), as_json, render_agreement)
