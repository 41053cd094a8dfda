"""A training with suites: its prompts and stop strings, and the choice of the best checkpoint."""

from collections.abc import Callable
from pathlib import Path

from transformers import AutoTokenizer

from tests.e2e.conftest import Program

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
SUITES = """
name = "suites"
seed = {seed}
rounds = 2
problems = "train.jsonl"
escalate = []

[curate]
draw = 8
sampler = "uniform"
sample = {{ n = 8, temperature = 1.0, max_tokens = 80 }}

[rollout]
prompt = {{ template = "{{question}}\\n\\n" }}
stop = ["##", "999"]

[score]
rewards = [{{ name = "numeric" }}]

[update]
warmup_steps = 1

[evaluate]
sample = {{ n = 2, max_tokens = 80 }}
report = {{ ks = [1, 2] }}
"""
APART = """
select = "validation"
[[evaluate.suites]]
name = "heldout"
problems = "half-0.jsonl"
[[evaluate.suites]]
name = "short"
problems = "half-0.jsonl"
sample = { n = 1, temperature = 0.0, max_tokens = 4 }
report = { ks = [1] }
score = { rewards = [{ name = "exact" }] }
prompt = { system = "1 + 1 = 2", template = "0 + {question}" }
stop = []
[[evaluate.suites]]
name = "validation"
problems = "half-1.jsonl"
every = 1
"""
ONE = """
problems = "half-0.jsonl"
every = 1
"""


def prepared(program: Program, name: str, evaluate: str, seed: int = 3) -> str:
    """A recipe in the program's folder, beside two halves of its held-out problems."""
    lines = (program.home / "heldout.jsonl").read_text().splitlines(keepends=True)
    for half in (0, 1):
        (program.home / f"half-{half}.jsonl").write_text("".join(lines[half:24:2]))
    (program.home / f"{name}.toml").write_text(SUITES.format(seed=seed) + evaluate)
    return f"{name}.toml"


def check_prompts(program: Program, run: str) -> None:
    """Hold what was asked and where it ended against the recipe's text, for each purpose."""
    tokenizer = AutoTokenizer.from_pretrained(SAMPLES / "policy")
    questions = {row["problem_id"]: row["question"] for row in program.rows("problems/*")}
    made = {
        e["output"]: e["purpose"]
        for e in program.events(run)
        if e["event"] == "stage_started" and e["stage"] == "rollout"
    }
    assert set(made.values()) == {"train", "eval", "eval-short", "eval-validation"}
    ends = set[str]()
    for output, purpose in made.items():
        for row in program.rows(output):
            question = questions[row["problem_id"]]
            asked = f"1 + 1 = 2\n\n0 + {question}" if purpose == "eval-short" else f"{question}\n\n"
            assert tokenizer.decode(row["prompt_tokens"]) == asked
            before = tokenizer.decode(row["completion_tokens"][:-1])
            if purpose != "eval-short":
                assert "##" not in before
                ends |= {row["completion"][-2:]} if "##" in row["completion"] else set()
    assert ends == {"##"}


def test_the_best_checkpoint_is_chosen_apart_and_a_choice_on_a_reported_set_is_said(
    new_program: Callable[..., Program],
) -> None:
    program = new_program(warm=True)
    apart = program.json("train", prepared(program, "apart", APART))
    check_prompts(program, apart["run"])
    assert list(apart["suites"]) == ["heldout", "short"]
    assert apart["remarks"] == []
    choice = apart["choice"]
    assert [c["round"] for c in choice["compared"]] == [0, 1, 2]
    assert choice["round"] == max(choice["compared"], key=lambda c: (c["pass_at_1"], -c["round"]))["round"]
    for figures in apart["suites"].values():
        assert set(figures) == {"before", "after", "best"}
    assert apart["before"] == apart["suites"]["heldout"]["before"]
    assert apart["suites"]["short"]["after"]["mean_tokens"] <= 4
    judged = {
        (e["purpose"], e["config"]["rewards"][0]["name"])
        for e in program.events(apart["run"])
        if e["event"] == "stage_started" and e["stage"] == "score"
    }
    rewards = {"train": "numeric", "eval": "numeric", "eval-validation": "numeric", "eval-short": "exact"}
    assert judged == set(rewards.items())
    shown = program.json("show", apart["run"])["attempts"]
    done = [(a["stage"], a["purpose"], a["round"]) for a in shown]
    assert len(done) == len(set(done))
    assert {purpose for stage, purpose, _ in done if stage == "evaluate"} == {"eval", "eval-short", "eval-validation"}
    # The same set chooses and is reported; another seed of the run has the first evaluation already.
    code, out, err = program.run("train", prepared(program, "one", ONE, seed=4))
    assert code == 0, err
    assert "was chosen on heldout, so its figure there is optimistic" in " ".join(out.split())
    one = program.json("train", "one.toml")
    assert one["choice"]["optimistic"] == ["heldout"]
    first = {(a["stage"], a["purpose"]): a["status"] for a in program.json("show", one["run"])["attempts"][:6]}
    assert first["rollout", "eval"] == first["score", "eval"] == first["evaluate", "eval"] == "reused"
