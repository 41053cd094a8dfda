"""The response surface on a terminal: problems from easy to hard, the cliff, how far hints move it."""

from gradus.data.curation.surface.known import GROUP
from gradus.flows.console.output import line, table
from gradus.tasks.formats import rate
from gradus.tasks.inspect.surface import CLIFF, Ability, Picture, Spent, Sums

BAR = 20
"""Characters of a bar of 1."""


def render_surface(found: Picture) -> None:
    """A line for each group of problems of like difficulty, then what is out of reach, and what hints add."""
    other, shares = found["against"], list(found["unreached"])[1:]
    line(f"policy {_name(found['policy'])}")
    policies = "1 policy" if found["policies"] == 1 else f"{found['policies']:,} policies"
    line(f"{found['problems']:,} problems; the model is of {found['rollouts']:,} judged rollouts by {policies}")
    rates = "".join(f"{_percent(share):>7}" for share in shares)
    line(f"problems  difficulty  P(solve){'':{BAR + 2}}  pass@64{rates}{'' if other is None else '  against'}")
    fallen = False
    for group in found["groups"]:
        if not fallen and group["pass_at_64"] < CLIFF:
            line(f"{'':-<20} the cliff: pass@64 below {CLIFF:g} {'':-<20}")
            fallen = True
        bar = "\u2588" * round(BAR * group["rate"])
        rates = "".join(f"{rate(each):>7}" for each in group["hinted"].values())
        beside = "" if other is None else f"{rate(group['against']):>9}"
        line(
            f"{group['problems']:>8,}  {group['low']:>+4.1f}..{group['high']:<+4.1f}  {rate(group['rate']):>8}  "
            f"{bar:<{BAR}}  {rate(group['pass_at_64']):>7}{rates}{beside}"
        )
    reach = (f"{num:,} {_help(share)}" for share, num in found["unreached"].items())
    line(f"out of reach (pass@64 below {CLIFF:g}): {', '.join(reach)}")
    if shares:
        line(f"columns in percent: with that share of the hint, which adds {found['gain']:+.2f} logits as a whole")
    if other is not None:
        line(f"against {_name(other)}: {other['ahead']:+.2f} logits, standard error {other['error']:.2f}")


def render_plan(found: Spent) -> None:
    """A row for each size with and without a hint, then the sums beside those of uniform sampling."""
    columns = ("mean hint", "samples", "groups", "with signal", "tokens", "tokens per signal")
    rows = [
        (f"{part['share']:.0%}" if part["share"] else "none", part["samples"], f"{part['groups']:,}", *_sums(part))
        for part in found["parts"]
    ]
    table("", columns, rows)
    signal, tokens, price = _sums(found)
    groups = f"{found['groups']:,} of {found['problems']:,} problems, {found['rollouts']:,} rollouts"
    line(f"policy {found['policy']}: {groups}")
    line(f"{tokens} tokens for {signal} groups with right and wrong answers, {price} each")
    if found["uniform"] is not None:
        line(f"every problem {GROUP} times without a hint: {found['uniform']:,.0f} each")


def _sums(of: Sums) -> tuple[str, str, str]:
    price = of["tokens_per_signal"]
    return f"{of['signal']:,.1f}", f"{of['tokens']:,}", "-" if price is None else f"{price:,.0f}"


def _name(of: Ability) -> str:
    heat = "" if of["temperature"] is None else f" at temperature {of['temperature']:g}"
    return f"{of['policy']}{heat}: {of['solved']:,} of {of['n']:,} rollouts right"


def _help(share: str) -> str:
    return f"with {_percent(share)} of the hint" if float(share) else "without a hint"


def _percent(share: str) -> str:
    return f"{float(share):.0%}"
