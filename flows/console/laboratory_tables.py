"""The tables of `gradus lab`: methods by gain, their cosines, what was left out."""

from gradus.flows.console.comparison_tables import render_comparison
from gradus.flows.console.output import fields, line, notes, table
from gradus.tasks.formats import points, share
from gradus.tasks.inspect.laboratory import Laboratory, MethodFigures

_MAX_COSINES = 12
"""Methods in the matrix that a terminal shows; the picture and --json have all."""


def render_laboratory(found: Laboratory) -> None:
    """Print the methods, the run's own first, then by gain."""
    columns = ("", "gain", "right", "wrong", "cosine", "S/N", "dead")
    title = "a step of each method on the same rollouts; gain in points, right and wrong in nats"
    table(title, columns, [_row(each) for each in found["methods"]])
    heads = ("", "pulled", *(f"{name}, age {age}" for age in found["ages"] for name in ("clipped", "masked")), "s")
    table("tokens with weight, and |advantage| that clips and masks take", heads, _cut(found))
    distinct = [place for place, each in enumerate(found["methods"]) if not each["same_as"]]
    shown = distinct[:_MAX_COSINES]
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


def _row(each: MethodFigures) -> tuple[object, ...]:
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
