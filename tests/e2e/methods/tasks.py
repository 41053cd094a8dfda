"""Methods whose reward needs problems of a kind: each is laid over a bundled task (`gradus train tasks --task`)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tests.e2e.conftest import Program
from tests.e2e.methods import asked, screens
from tests.e2e.methods import rewards as r
from tests.e2e.methods.made import Made, Row
from tests.e2e.methods.objectives import Check
from tests.e2e.methods.shaping import ROUNDS


@dataclass(frozen=True)
class OnTask:
    """A method on the problems of a kind, whose rewards an independent implementation counts again."""

    task: str
    """"" for the problems of the tiny recipe."""
    judge: r.Judge
    sets: tuple[str, ...] = ()
    """What the method needs on these problems."""
    column: str = "reward"
    """`reward` as scored, `shaped` as learned from."""
    more: Check | None = None
    within: float = 1e-6

    def __call__(self, program: Program, run: str) -> None:
        """Raise AssertionError if a reward differs, or if all of them are the same."""
        made = Made(program, run)
        rows: list[Row] = [{**row, "round": round} for round in ROUNDS for row in made.learned(round)]
        found = [row[self.column] for row in rows]
        judged = [row for round in ROUNDS for row in made.about(round, "judge")]
        problems = {row["problem_id"]: row for row in made.given("curate", "problems", 1)}
        again = [
            self.judge({**with_extra(problems[row["problem_id"]]), "row": row, "judged": judged}, row["completion"])
            for row in rows
        ]
        differ = [
            (row["completion"], one, other)
            for row, one, other in zip(rows, found, again, strict=True)
            if (one != other if one is None or other is None else abs(one - other) > self.within)
        ]
        assert not differ, differ[:3]
        assert len({None if each is None else round(each, 6) for each in again}) > 1
        if self.more is not None:
            self.more(program, run)


def of_level_one(program: Program, run: str) -> None:
    """SATURN: until enough of them are solved, problems of the first level alone."""
    made = Made(program, run)
    assert {row["domain"] for round in ROUNDS for row in made.given("curate", "problems", round)} > {"sat/1"}
    domains = {row["problem_id"]: row["domain"] for row in made.given("curate", "problems", 1)}
    assert {domains[row["problem_id"]] for round in ROUNDS for row in made.plan(round)} == {"sat/1"}


def with_extra(problem: Row) -> Row:
    """A problem with what is in its `extra`."""
    return {**problem, **json.loads(problem["extra"] or "{}")}


def on_file(name: str, *sets: str, given: bool = False) -> tuple[str, ...]:
    """What a method needs whose problems are a file (tests.e2e.methods.kinds)."""
    shown = (
        ("given={{template='{{solution}}'}}", 'update.origin_losses=[{{origin="expert", loss="luffy"}}]')
        if given
        else ()
    )
    return (f'problems="{name}.jsonl"', f'evaluate.problems="{name}.jsonl"', 'ingest.answers="optional"', *shown, *sets)


def given(name: str, judge: r.Judge) -> OnTask:
    """A method whose form the bundled policy does not write: texts that it is given are judged beside its own."""
    return OnTask("boxes", judge, on_file(name, given=True))


FORM = 'score.rewards=[{{name="format", pattern="^[a-z ]+$"}}, "bleu"]'
TASK_METHODS: Mapping[str, Check] = {
    "bigcharts_r1": OnTask("", r.erring),
    "btl_ui": given("blinks", screens.btl_ui),
    "cls_rl": OnTask("choice", lambda p, said: float(r.last(said).lower() == p["answer"].lower()) + r.formed(said)),
    "docthinker": OnTask("boxes", r.located),
    "embodied_planning": given("plans", r.prefix),
    "genome_bench": OnTask("choice", lambda p, said: float(r.last(said) == p["answer"]) + 0.1 * r.formed(said)),
    "group_rank": given("ranking", r.ranked),
    "gui_r1": given("gui", screens.gui_r1),
    "mico": OnTask("choice", screens.mico, on_file("views", given=True)),
    "moss_chatv": OnTask("boxes", r.warped, on_file("states")),
    "mt_r1_zero": OnTask("translation", r.gated, (FORM,), column="shaped"),
    "no_thinking_cls_rl": OnTask(
        "choice", lambda p, said: float(" ".join(said.lower().split()) == p["answer"]), on_file("terms")
    ),
    "perception_r1": given("several", r.matched),
    "r1_sgg": given("graphs", r.graph),
    "r3": OnTask("translation", r.relevant),
    "reasoning_table": OnTask("tables", r.queried, ("curate.draw=32", "profile.n=4")),
    "recode": OnTask("programs", r.parsing, on_file("code")),
    "rl_struct": OnTask("records", r.parts_of_record),
    "rlmt": OnTask(
        "boxes",
        asked.behind_thinking,
        on_file("thoughts", 'roles.rm.policy="scorer"', given=True),
        column="shaped",
        within=1e-5,
    ),
    "rlpt": OnTask(
        "translation",
        asked.segments,
        (
            'waves=[{{name="beside_reference", template="{{question}}{{answer}}|{{reference}}"}}]',
            'score.judge.rewards=[{{name="format", pattern="a"}}]',
        ),
        column="shaped",
    ),
    "rlvrr": OnTask("translation", r.chain, on_file("terms")),
    "saturn": OnTask("sat", r.solved, more=of_level_one),
    "se_gui": OnTask("boxes", r.near),
    "sim_rl": given("calls", r.called),
    "sorft": OnTask("sorting", r.f1),
    "swe_rl": OnTask("programs", r.patch, on_file("code")),
    "tat_r1": OnTask("translation", r.terms, on_file("terms")),
    "time_r1": OnTask("dates", r.months),
    "ui_r1": given("actions", r.acted),
    "verif": OnTask(
        "constraints",
        r.with_verdict,
        (
            'waves=[{{name="verify", role="judge", n=1, template="{{question}}"}}]',
            'score.judge.rewards=[{{name="format", pattern="a"}}]',
        ),
        column="shaped",
    ),
    "videochat_r1": given("spans", r.spanned),
    "vlm_r1": OnTask("boxes", r.located),
    "vlm_r1_detection": given("several", r.detected),
}
