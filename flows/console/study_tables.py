"""The tables of `gradus compare`, `gradus lab`, `gradus agree` and `gradus bisect`; methods stand under letters."""

import shlex
from collections.abc import Mapping

from gradus.data.intervals import LEVEL
from gradus.flows.console.output import fields, line, notes, table
from gradus.tasks.formats import brief, count, interval, points, rate, share, span, visible
from gradus.tasks.inspect.agreement.numbers import Bisected
from gradus.tasks.inspect.agreement.pairs import OWN, Agreement, Cell, Divergence, Pair
from gradus.tasks.inspect.comparing.figures import START, Comparison, Cost, Judged, Tuning, letters
from gradus.tasks.inspect.laboratory import Laboratory, MethodFigures

_MAX_COSINES = 12
"""Methods in the matrix that a terminal shows; the picture and --json have all."""
_FLIPS = 5
"""Rows on which a pair disagrees that a terminal shows; --json has more."""


def render_comparison(result: Comparison) -> None:
    """The tables of a comparison, a sentence for each method and its start and for each pair, and remarks."""
    methods = result["methods"]
    letter = letters(result)
    for name, short in letter.items():
        line(f"{short}  {name}")
    rows = [
        (
            letter[m["method"]],
            span(m["rounds"]),
            count(m["tokens"]),
            rate(m["before"]["value"]),
            interval(m["after"]),
            interval(m["gain"], points),
        )
        for m in methods
    ]
    rows += [(each["method"], "failed", "-", "-", each["reason"], "-") for each in result.get("failed", [])]
    columns = ("", "rounds", "tokens", "before", "after", "gain, points")
    table("pass@1 on the main suite (95 % interval over seeds and problems)", columns, rows)
    _by_seed(result, letter)
    bands = [
        (b["band"], b["problems"], rate(b["before"]),
         *(f"{b['pass_at_1'][name]:.3f} ({b['wins'][name]})" for name in letter))
        for b in result["by_difficulty"]
    ]  # fmt: skip
    title = "by difficulty: pass@1 (problems at which the method alone is the best)"
    table(title, ("before training", "problems", "start", *letter.values()), bands)
    stages = dict.fromkeys(stage for m in methods for stage in m["stages"])
    costs = [(stage, *(_cost(m["stages"].get(stage)) for m in methods)) for stage in stages]
    costs += [
        ("truncated", *(share(m["truncated"]) for m in methods)),
        ("groups without variance", *(share(m["dead_groups"]) for m in methods)),
    ]
    table("cost of a training: tokens sampled, seconds", ("stage", *letter.values()), costs)
    if result["settings"]:
        differing = [(s["setting"], *(s["values"][name] for name in letter)) for s in result["settings"]]
        table("settings that differ", ("setting", *letter.values()), differing)
    if "tuning" in result:
        _tuning(result["tuning"])
    for each in result["gains"]:
        line(_judged(each, letter, result["margin"]) + ")")
    for each in result["differences"]:
        spent = " and ".join(f"{count(s['tokens'])} tokens in {count(s['seconds'])} s" for s in each["sides"])
        says = _judged(each, letter, result["margin"])
        line(f"{says}), at {spent}, {share(each['shared_tokens'], 0)} of them shared")
    notes(result["remarks"])
    fields(_below(result))


def _by_seed(result: Comparison, letter: Mapping[str, str]) -> None:
    values = {(m["method"], s["seed"]): s["after"] for m in result["methods"] for s in m["by_seed"]}
    seeds = dict.fromkeys(seed for _, seed in values)
    if len(seeds) > 1:
        rows = [(str(s), *(rate(values.get((name, s))) for name in letter)) for s in seeds]
        table("pass@1 by seed", ("seed", *letter.values()), rows)


def _tuning(tuning: Tuning) -> None:
    rows = [
        (
            method["method"],
            *each["values"].values(),
            each["failed"] if "failed" in each else rate(each["pass_at_1"]),
            "chosen" if each["values"] == method["chosen"] else "",
        )
        for method in tuning["methods"]
        for each in method["tried"]
    ]
    keys = tuning["methods"][0]["tried"][0]["values"]
    where = f"of {tuning['on']}" if tuning["on"] else "held out of the evaluated ones"
    title = f"tuning: pass@1 on {tuning['problems']} problems {where}, which are not judged"
    table(title, ("method", *keys, "pass@1", ""), rows)
    cost, seeds = tuning["cost"], ", ".join(map(str, tuning["seeds"]))
    spent = f"{count(cost['tokens'])} tokens, {count(cost['seconds'])} s"
    line(f"tuning took {cost['trainings']} trainings (seeds {seeds}): {spent}")
    notes(tuning["remarks"])


def _below(result: Comparison) -> dict[str, object]:
    found: dict[str, object] = {"budget": result["budget"]} if result["budget"] else {}
    margin = f"{100 * result['margin']:g} points"
    found |= {"seeds": result["seeds"], "problems": result["problems"], "margin": margin}
    if result["differences"]:
        found["start"] = f"{result['start']} for all methods"
    plan = result["plan"]
    if plan:
        when = "before the first token" if plan["before_first_token"] else "after tokens had been sampled"
        found["plan"] = f"{plan['digest'][:12]}, written {when}"
    return found


def _judged(each: Judged, letter: Mapping[str, str], margin: float) -> str:
    """Return the verdict with its figures, without the closing bracket."""
    method, than = letter[each["method"]], letter.get(each["than"], START)
    text = f"{interval(each['difference'], points)} points of pass@1"
    least = f"smallest detectable difference {points(each['detectable'], sign=False)}"
    match each["verdict"]:
        case "undecided":
            return f"{method} against {than}: undecided ({text}; {least}"
        case "equivalent":
            return f"{method} and {than} are equivalent within {100 * margin:g} points ({text}"
        case verdict:
            return f"{method} is {verdict} than {than} ({text}; p {each['p_different']:.2g}"


def _cost(cost: Cost | None) -> str:
    if cost is None:
        return "-"
    seconds = f"{cost['seconds']:,.1f} s"
    return f"{count(cost['tokens'])}, {seconds}" if cost["tokens"] else seconds


def render_laboratory(found: Laboratory) -> None:
    """Print the methods, the run's own first, then by gain."""
    columns = ("", "gain", "right", "wrong", "cosine", "S/N", "dead")
    title = "a step of each method on the same rollouts; gain in points, right and wrong in nats"
    table(title, columns, [_method_row(each) for each in found["methods"]])
    heads = ("", "pulled", *(f"{name}, age {age}" for age in found["ages"] for name in ("clipped", "masked")), "s")
    table("tokens with weight, and |advantage| that clips and masks take", heads, _cut(found))
    shown = [place for place, each in enumerate(found["methods"]) if not each["same_as"]][:_MAX_COSINES]
    if len(shown) > 1:
        names = [found["methods"][place]["method"] for place in shown]
        rows = [
            (name, *(_signed(found["cosines"][place][other]) for other in shown))
            for name, place in zip(names, shown, strict=True)
        ]
        table("cosine of gradients", ("", *names), rows)
    for each in found["failed"]:
        line(f"{each['method']} is left out: {each['reason']}")
    notes(found["remarks"])
    fields(
        {
            "runs": found["runs"],
            "rounds": ", ".join(map(str, found["rounds"])),
            "ages": ", ".join(map(str, found["ages"])),
            "rollouts": f"{found['rows']:,}",
        }
    )
    for comparison in found.get("comparisons", []):
        render_comparison(comparison)


def _method_row(each: MethodFigures) -> tuple[object, ...]:
    gain = each["gain"]
    return (
        each["method"] + (f" (= {each['same_as']})" if each["same_as"] else ""),
        "-" if gain is None else f"{points(gain['mean'])}±{100 * gain['error']:.1f}",
        _signed(each["right"]),
        _signed(each["wrong"]),
        _signed(each["cosine"]),
        "-" if each["signal_to_noise"] is None else f"{each['signal_to_noise']:.2f}",
        share(each["dead_groups_frac"]),
    )


def _cut(found: Laboratory) -> list[tuple[object, ...]]:
    """A row a method: tokens that are pulled at, what is clipped and masked at each age, seconds."""
    rows = list[tuple[object, ...]]()
    for each in found["methods"]:
        known = {of_age["age"]: (of_age["clipped_frac"], of_age["masked_frac"]) for of_age in each["by_age"]}
        cut = (share(value) for age in found["ages"] for value in known.get(age, (None, None)))
        rows.append((each["method"], share(each["tokens_frac"]), *cut, f"{each['seconds']:.1f}"))
    return rows


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def render_agreement(found: Agreement) -> None:
    """Print each pair: agreement by column, rounds, and rows on which they disagree."""
    for pair in found["pairs"]:
        _render_pair(pair)
    fields({"run": found["run"], "rewards": ", ".join(found["rewards"]), "rollouts": f"{found['rollouts']:,}"})


def _render_pair(pair: Pair) -> None:
    first, second = pair["first"], pair["second"]
    heads = ("", "rows", "agree", "kappa (95 %)", f"{first} alone", f"{second} alone")
    title = f"{first} and {second}: right by both or neither, and by one alone"
    table(title, heads, list(map(_cell_row, pair["cells"])))
    if pair["num_unjudged"]:
        line(f"note: {pair['num_unjudged']:,} rollouts have no verdict of one of them, and count nowhere")
    if pair["rounds"]:
        rows = [(e["run"], e["round"], e["rows"], e["flips"], e["groups"], e["groups_changed"]) for e in pair["rounds"]]
        columns = ("run", "round", "rows", "other verdicts", "groups", "with other advantages")
        table("rows that are learned from", columns, rows)
    if pair["flips"]:
        shown = pair["flips"][:_FLIPS]
        read = [[visible(each[side] or "-") for side in ("first", "second")] for each in shown]
        ends = [brief(each["completion"][-60:].strip()) for each in shown]
        rows = [(e["round"], e["right"], *texts, end) for e, texts, end in zip(shown, read, ends, strict=True)]
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


def _cell_row(cell: Cell) -> tuple[object, ...]:
    kappa = "-" if cell["kappa"] is None else interval(cell["kappa"], "{:.2f}".format)
    place = visible(f"{cell['by']} {cell['value']}".strip())
    return (place, f"{cell['rows']:,}", share(cell["agreement"]), kappa, cell["only_first"], cell["only_second"])


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
