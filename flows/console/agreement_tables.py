"""The tables of `gradus agree`."""

import shlex

from gradus.data.intervals import LEVEL
from gradus.flows.console.output import fields, line, table
from gradus.tasks.formats import brief, interval, share, visible
from gradus.tasks.inspect.agreement.numbers import Bisected
from gradus.tasks.inspect.agreement.pairs import OWN, Agreement, Cell, Divergence, Flip, Pair

_FLIPS = 5
"""Rows on which a pair disagrees that a terminal shows; --json has more."""


def render_agreement(found: Agreement) -> None:
    """Print each pair: agreement by column, rounds, and rows on which they disagree."""
    for pair in found["pairs"]:
        _render_pair(pair)
    fields({"run": found["run"], "rewards": ", ".join(found["rewards"]), "rollouts": f"{found['rollouts']:,}"})


def _render_pair(pair: Pair) -> None:
    first, second = pair["first"], pair["second"]
    heads = ("", "rows", "agree", "kappa (95 %)", f"{first} alone", f"{second} alone")
    table(f"{first} and {second}: right by both or neither, and by one alone", heads, list(map(_row, pair["cells"])))
    if pair["num_unjudged"]:
        line(f"note: {pair['num_unjudged']:,} rollouts have no verdict of one of them, and count nowhere")
    if pair["rounds"]:
        rows = [(e["run"], e["round"], e["rows"], e["flips"], e["groups"], e["groups_changed"]) for e in pair["rounds"]]
        columns = ("run", "round", "rows", "other verdicts", "groups", "with other advantages")
        table("rows that are learned from", columns, rows)
    if pair["flips"]:
        rows = [
            (each["round"], each["right"], visible(each["first"] or "-"), visible(each["second"] or "-"), _end(each))
            for each in pair["flips"][:_FLIPS]
        ]
        title = f"{min(_FLIPS, pair['num_flips'])} of {pair['num_flips']:,} rollouts on which they disagree"
        table(title, ("round", "right by", f"{first} read", f"{second} read", "completion"), rows)
    for each in pair["divergences"]:
        line(f"{each['run']}: {_divergence(each, first, second)}")
        if (since := each["since"]) is not None and since["p"] <= LEVEL:
            line(
                f"{each['run']}: they disagree more often from round {since['round']} on: on "
                f"{share(since['before'])} of a group's rows in the rounds before, on {share(since['after'])} in it "
                f"and after (p = {since['p']:.2g})"
            )


def _divergence(each: Divergence, first: str, second: str) -> str:
    """Return a sentence on the first update that differs, with the command that repeats a run's own from there."""
    if each["round"] is None:
        return "every update would be the same" if first == OWN else f"{first} and {second} make the same updates"
    tokens = f"{each['tokens']:,} tokens were sampled in later rounds"
    if first != OWN:
        return f"updates by {first} and by {second} first differ in round {each['round']}; {tokens}"
    return (
        f"with {second}, the first update that differs is that of round {each['round']}; {tokens} (`gradus amend "
        f"{shlex.quote(each['run'])} REWARD` repeats them and reuses earlier rounds)"
    )


def _row(cell: Cell) -> tuple[object, ...]:
    kappa = "-" if cell["kappa"] is None else interval(cell["kappa"], "{:.2f}".format)
    place = visible(f"{cell['by']} {cell['value']}".strip())
    return (place, f"{cell['rows']:,}", share(cell["agreement"]), kappa, cell["only_first"], cell["only_second"])


def _end(flip: Flip) -> str:
    return brief(flip["completion"][-60:].strip())


def render_bisected(found: Bisected) -> None:
    """Print the audited rounds and the round that was found, or what is to be labelled first."""
    bisection = found["found"]
    if bisection is None:
        asking = shlex.join(("gradus", "browse", str(found["labels"])))
        line(
            f"{found['to_label']} rows of {found['labels']} have no label: `{asking}` asks for them "
            '(or write true or false after "correct": in each); then repeat the command'
        )
        return
    rows = [(each["round"], each["rows"], each["differ"]) for each in bisection["audited"]]
    table("audited", ("round", "rows", "other verdicts"), rows)
    if bisection["round"] is None:
        line(f"{found['run']}: the last round does not differ from the first (p = {bisection['p']:.2g})")
    else:
        since = f"from round {bisection['round']} on (p = {bisection['p']:.2g})"
        line(f"{found['run']}: the auditor disagrees more often {since}")
