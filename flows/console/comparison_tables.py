"""The tables of `gradus compare`: methods under letters, differences, difficulty, cost."""

from collections.abc import Mapping

from gradus.flows.console.output import fields, line, notes, table
from gradus.tasks.formats import count, interval, points, rate, share, span
from gradus.tasks.inspect.comparing.figures import START, Comparison, Cost, Difference, Judged, Tuning, letters


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
    failed = result.get("failed", [])
    rows += [(each["method"], "failed", "-", "-", each["reason"], "-") for each in failed]
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
        line(_sentence(each, letter, result["margin"]))
    notes(result["remarks"])
    fields(_below(result))


def _by_seed(result: Comparison, letter: Mapping[str, str]) -> None:
    """Show pass@1 after the training of each seed; a seed stands in one line for all methods."""
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
    found |= {"seeds": result["seeds"], "problems": result["problems"]}
    found["margin"] = f"{100 * result['margin']:g} points"
    if result["differences"]:
        found["start"] = f"{result['start']} for all methods"
    plan = result["plan"]
    if plan:
        when = "before the first token" if plan["before_first_token"] else "after tokens had been sampled"
        found["plan"] = f"{plan['digest'][:12]}, written {when}"
    return found


def _sentence(each: Difference, letter: Mapping[str, str], margin: float) -> str:
    spent = " and ".join(f"{count(s['tokens'])} tokens in {count(s['seconds'])} s" for s in each["sides"])
    says = _judged(each, letter, margin)
    return f"{says}), at {spent}, {share(each['shared_tokens'], 0)} of them shared"


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
