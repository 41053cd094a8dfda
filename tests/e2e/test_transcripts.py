"""The pages of docs/ as they stand there, through the real program; and what their runs left, counted another way."""

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from gradus.tasks.formats import size
from gradus.tasks.runs.history import attempts
from tests.e2e import transcripts
from tests.e2e.transcripts import CUT, PAGES, ROOT, Command, Names, difference, read_page, run_page

POLICY = ROOT / "data" / "samples" / "policy" / "model.safetensors"
Call = tuple[str, int, str]


@dataclass
class Told:
    """A page that was run: each command with what it printed, and the sizes and times of all files after it."""

    program: Any
    commands: list[Command] = field(default_factory=list[Command])
    printed: list[list[str]] = field(default_factory=list[list[str]])
    files: list[dict[str, tuple[int, int]]] = field(default_factory=list[dict[str, tuple[int, int]]])

    def note(self, command: Command, printed: list[str]) -> None:
        self.commands.append(command)
        self.printed.append(printed)
        found = (path for path in self.program.home.parent.rglob("*") if path.is_file())
        self.files.append({str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found})

    def wrong(self) -> str:
        """How what was printed differs from the page; empty if it does not."""
        pairs = zip(self.commands, self.printed, strict=True)
        differences = [(c.text, difference(c.shown, lines), lines) for c, lines in pairs]
        return "\n".join(
            "\n".join([f"$ {text}", wrong, "printed:", *lines]) for text, wrong, lines in differences if wrong
        )

    def runs(self, name: str) -> list[str]:
        """The runs of a recipe, oldest first."""
        return [found.name for found in sorted(self._runs().glob(f"{name}-*"), key=_began)]

    def events(self, run: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self._runs() / run / "events.jsonl").read_text().splitlines()]

    def outputs(self, run: str) -> dict[Call, str]:
        """The artifact of each stage of a run, computed or reused; of several the last."""
        found = [event for event in self.events(run) if "output" in event]
        return {(event["stage"], event["round"], event["purpose"]): event["output"] for event in found}

    def attempts(self, run: str, start: int) -> list[dict[str, Any]]:
        """What one command did for a run."""
        return [row for row in attempts(self._runs() / run) if row["start"] == start]

    def started(self, run: str, call: Call) -> dict[str, Any]:
        """How a stage of a run began that was computed."""
        found = [event for event in self.events(run) if event["event"] == "stage_started"]
        return [event for event in found if (event["stage"], event["round"], event["purpose"]) == call][-1]

    def inputs(self, run: str, call: Call) -> dict[str, list[str]]:
        return self.started(run, call)["inputs"]

    def pass_rate(self, run: str, index: int) -> float:
        """The share of a round's evaluation that is correct."""
        rows = self.rows(self.outputs(run)["score", index, "eval"])
        return sum(row["correct"] for row in rows) / len(rows)

    def table(self, place: int) -> list[list[str]]:
        """The words of each row of a table that was printed."""
        return [line.split() for line in self.printed[place] if line.startswith("│")]

    def place(self, words: str) -> int:
        """Which command has these words."""
        return next(place for place, command in enumerate(self.commands) if words in command.text)

    def _runs(self) -> Path:
        return self.program.home / "runs"

    def rows(self, ref: str) -> list[dict[str, Any]]:
        """The rows of an artifact, by its files."""
        files = sorted((self.program.home / "lake" / ref).glob("part-*.parquet"))
        return [row for file in files for row in pq.read_table(file).to_pylist()]


def _began(run: Path) -> float:
    return (run / "run.json").stat().st_mtime


@pytest.fixture(scope="session")
def tell(shared: Path, prefect_api: str) -> Iterator[Callable[[str], Told]]:
    """Run a page in a fresh folder, which stays as long as the workers that were started in it."""
    folders: list[Path] = []

    def run(name: str) -> Told:
        folder = transcripts.fresh_folder()
        folders.append(folder)
        told = Told(transcripts.page_program(folder, shared, prefect_api))
        run_page(read_page((ROOT / "docs" / name).read_text()), told.program, folder, told.note)
        return told

    yield run
    for folder in folders:
        shutil.rmtree(folder)


def check_the_figures_of_the_first_hour_are_those_of_its_files(first_hour: Told) -> None:
    """The rewards that `gradus sql` averages, judged again here from the completions and the answers."""
    run = first_hour.runs("sums")[0]
    outputs = first_hour.outputs(run)
    ingested = [row for (stage, *_), ref in outputs.items() if stage == "ingest" for row in first_hour.rows(ref)]
    answers = {row["problem_id"]: row["answer"] for row in ingested}
    judged: dict[tuple[int, str], list[float]] = defaultdict(list)
    for (stage, index, purpose), ref in outputs.items():
        for row in first_hour.rows(ref) if stage == "rollout" else ():
            numbers = re.findall(r"-?\d+", row["completion"])
            judged[index, purpose].append(float(bool(numbers) and numbers[-1] == answers[row["problem_id"]]))
    assert {key: len(values) for key, values in judged.items()} == {
        (0, "eval"): 12 * 4,
        (0, "profile"): 16 * 4,
        **{(index, "train"): 8 * 8 for index in (1, 2, 3)},
        (3, "eval"): 12 * 4,
    }
    place = first_hour.place("gradus sql")
    cells = first_hour.table(place)
    printed = {(int(c[1]), c[3]): (int(c[5]), float(c[7])) for c in cells}
    assert printed == {key: (len(v), pytest.approx(sum(v) / len(v), abs=1e-3)) for key, v in judged.items()}


def check_a_misspelt_filter_ends_with_2_before_anything_starts(first_hour: Told) -> None:
    place = first_hour.place("pass_rat:")
    assert first_hour.printed[place][-1] == "[exit 2]"
    assert first_hour.files[place] == first_hour.files[place - 1]


def check_the_collapsed_run_went_back_to_its_best_policy_and_learnt_on_from_there(collapse: Told) -> None:
    (run,) = collapse.runs("hasty")
    stop, back = collapse.place("gradus train"), collapse.place("guards.0.then=back")
    assert collapse.printed[stop][-1] == "[exit 1]"
    said = collapse.printed[stop][-2]
    value = float(said.partition(" is below the guard's min")[0].rpartition("reward/mean = ")[2])
    outputs = collapse.outputs(run)
    rewards = [row["reward"] for row in collapse.rows(outputs["score", 3, "train"])]
    assert len(rewards) == 16 * 8
    assert value == pytest.approx(sum(rewards) / len(rewards), rel=1e-3)
    rates = {index: collapse.pass_rate(run, index) for index in (0, 1, 2)}
    best = max(rates, key=lambda index: (rates[index], -index))
    policies = {index: outputs["update", index, "train"] for index in (1, 2)} | {
        0: collapse.inputs(run, ("rollout", 0, "eval"))["policy"][0]
    }
    assert f"the best policy so far is that of round {best}, {policies[best]}; continue from there: " in said
    assert f"gradus rerun {run} update --from-round" in said
    (remark,) = [line for line in collapse.printed[back] if line.startswith("note: round 3: ")]
    assert remark.endswith(f"went back to the policy of round {best}, and on with update.lr = 5e-05")
    assert collapse.inputs(run, ("update", 4, "train"))["policy"] == [policies[best]]
    assert collapse.started(run, ("update", 4, "train"))["config"]["lr"] == 5e-5
    again = collapse.attempts(run, 2)
    assert {row["status"] for row in again if row["round"] < 3} == {"reused"}


def check_more_rounds_go_on_from_the_last_one_as_foreseen(changed_mind: Told) -> None:
    run = changed_mind.runs("tiny")[0]
    ahead = changed_mind.place("--rounds 2 --dry-run")
    assert changed_mind.files[ahead] == changed_mind.files[ahead - 1]  # nothing was started, nothing written
    again = changed_mind.attempts(run, 2)
    computed = {(row["stage"], row["round"], row["purpose"]) for row in again if row["status"] == "finished"}
    assert {index for _, index, _ in computed} == {2}
    first = [row["output"] for row in changed_mind.attempts(run, 1) if row["stage"] == "update"]
    assert [row["output"] for row in again if (row["stage"], row["round"]) == ("update", 1)] == first
    foreseen = {row[1]: int(row[5]) for row in changed_mind.table(ahead)}
    done = Counter(stage for stage, _, purpose in computed if purpose != "escalate1")
    assert all(done[stage] <= foreseen[stage] <= done[stage] + 1 for stage in done)  # + 1: of the hinted rollouts
    assert set(foreseen) >= set(done)
    params = sum(tensor.size for tensor in load_file(POLICY).values())
    (memory,) = [line for line in changed_mind.printed[ahead] if line.startswith("memory ")]
    assert f"update {size(16 * params)} at least" in memory


def check_a_setting_changed_from_a_round_on_shares_what_came_before(changed_mind: Told) -> None:
    old, new = changed_mind.runs("tiny")
    ahead = changed_mind.place("lr=3e-5 --dry-run")
    assert changed_mind.files[ahead] == changed_mind.files[ahead - 1]
    assert f"update-2: lr = 3e-05, before 5e-05 (run {old})" in changed_mind.printed[ahead]
    done = changed_mind.attempts(new, 1)
    assert {row["round"] for row in done if row["status"] == "finished"} == {2}
    assert {row["stage"] for row in done if row["status"] == "finished"} == {"update", "rollout", "score", "evaluate"}
    assert changed_mind.outputs(new)["update", 1, "train"] == changed_mind.outputs(old)["update", 1, "train"]
    assert changed_mind.printed[changed_mind.place("gradus why")] == [
        f"eval-evaluate-0: reused: the same settings, inputs and code as in run {old}",
        f"eval-evaluate-2: finished: in update lr = 3e-05, before 5e-05 (run {old})",
    ]


def check_rollouts_of_a_run_are_scored_again_without_naming_their_problems(changed_mind: Told) -> None:
    outputs = changed_mind.outputs(changed_mind.runs("tiny")[0])
    again = changed_mind.program.json("score", "--rollouts", outputs["rollout", 2, "train"], "--reward", "numeric")
    assert (again["artifact"], again["reused"]) == (outputs["score", 2, "train"], True)


CHECKS: list[tuple[str, list[Callable[[Told], None]]]] = [
    (
        "first-hour.md",
        [
            check_the_figures_of_the_first_hour_are_those_of_its_files,
            check_a_misspelt_filter_ends_with_2_before_anything_starts,
        ],
    ),
    ("collapse.md", [check_the_collapsed_run_went_back_to_its_best_policy_and_learnt_on_from_there]),
    (
        "changed-mind.md",
        [
            check_more_rounds_go_on_from_the_last_one_as_foreseen,
            check_a_setting_changed_from_a_round_on_shares_what_came_before,
            check_rollouts_of_a_run_are_scored_again_without_naming_their_problems,
        ],
    ),
]


@pytest.mark.parametrize(("page", "checks"), CHECKS)
def test_a_page_shows_what_is_printed_and_what_the_files_say(
    tell: Callable[[str], Told], page: str, checks: list[Callable[[Told], None]]
) -> None:
    told = tell(page)
    assert told.wrong() == ""
    for check in checks:
        check(told)


SHOWN = ["round   1  update    reward 0.25, 2,124 tokens trained (3.0 s)", CUT, "tiny-0a1b2c3d: finished"]


@pytest.mark.parametrize(
    ("printed", "same"),
    [
        (["round   1  update    reward 0.5, 90 tokens trained (12.0 s)", "tiny-99999999: finished"], True),
        (["round   1  update    reward 0.5, 90 tokens trained (12.0 s)", "x", "tiny-99999999: finished"], True),
        (["round   1  update    reward 0.5, 90 tokens trained (reused)", "tiny-99999999: finished"], False),
        (["round   2  update    reward 0.5, 90 tokens trained (12.0 s)", "tiny-99999999: finished"], False),
        (["round   1  update    reward 0.5, 90 tokens trained (12.0 s)", "tiny-99999999: failed"], False),
        (["tiny-99999999: finished"], False),
    ],
)
def test_numbers_may_differ_and_words_may_not(printed: list[str], same: bool) -> None:
    assert (difference(SHOWN, printed) == "") is same
    assert difference(printed, [*printed, "more"]) != ""


def test_a_name_in_a_command_is_that_of_this_run() -> None:
    names = Names()
    names.learn(["artifact  problems/0123456789abcdef", "x"], ["artifact  problems/fedcba9876543210", "x"])
    assert names.meant("gradus show problems/01234567 sums-89abcdef") == "gradus show problems/fedcba98 sums-89abcdef"


def test_a_page_that_is_written_again_is_what_it_was() -> None:
    for page in PAGES:
        assert read_page(page.read_text()).text() == page.read_text()
