"""How `gradus compare` looks: methods under letters, differences, difficulty, cost."""

from gradus.data.records import Figure
from gradus.flows.console.output import fields, line, table
from gradus.tasks.inspect.comparing.report import Comparison, Difference, letters
from gradus.tasks.inspect.comparing.trainings import StageCost


def render_comparison(result: Comparison) -> None:
    """The tables of a comparison, a sentence for each pair of methods, and what else is to be known."""
    methods = result["methods"]
    letter = letters(result)
    for name, short in letter.items():
        line(f"{short}  {name}")
    rows = [
        (
            letter[m["method"]],
            _range(m["rounds"]),
            f"{m['tokens']:,.0f}",
            f"{m['before']['value']:.3f}",
            _rate(m["after"]),
            _points(m["gain"]),
        )
        for m in methods
    ]
    columns = ("", "rounds", "tokens", "before", "after", "gain, points")
    table("pass@1 on the main suite (95 % interval over seeds and problems)", columns, rows)
    bands = [
        (b["band"], b["problems"], *(f"{b['pass_at_1'][name]:.3f} ({b['wins'][name]})" for name in letter))
        for b in result["by_difficulty"]
    ]
    title = "by difficulty: pass@1 (problems at which the method alone is the best)"
    table(title, ("before training", "problems", *letter.values()), bands)
    stages = dict.fromkeys(stage for m in methods for stage in m["stages"])
    costs = [(stage, *(_cost(m["stages"].get(stage)) for m in methods)) for stage in stages]
    table("cost of a training: tokens sampled, seconds", ("stage", *letter.values()), costs)
    for each in result["differences"]:
        line(_sentence(each, letter[each["method"]], letter[each["than"]]))
    for remark in result["remarks"]:
        line(f"note: {remark}")
    budget = {"budget": result["budget"]} if result["budget"] else {}
    fields({**budget, "seeds": result["seeds"], "problems": result["problems"]})


def _sentence(each: Difference, method: str, than: str) -> str:
    """What the interval of a difference says; one that holds 0 is none."""
    found = each["difference"]
    told = f"{_points(found)} points of pass@1"
    if not each["differs"]:
        return f"{method} against {than}: no difference is shown ({told})"
    return f"{method} is {'better' if found['value'] > 0 else 'worse'} than {than}: {told}"


def _rate(figure: Figure) -> str:
    return f"{figure['value']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"


def _points(figure: Figure) -> str:
    value, low, high = (100 * figure[key] for key in ("value", "low", "high"))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def _cost(cost: StageCost | None) -> str:
    if cost is None:
        return "-"
    seconds = f"{cost['seconds']:,.1f} s"
    return f"{cost['tokens']:,.0f}, {seconds}" if cost["tokens"] else seconds


def _range(values: list[int]) -> str:
    least, most = min(values), max(values)
    return str(least) if least == most else f"{least} to {most}"
