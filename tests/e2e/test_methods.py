"""Methods laid over the tiny recipe, two rounds each, by the real program in one home; all with `make test-methods`.

Each run must show the method's defining behaviour (tests.e2e.methods.behaviour).
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

import gradus
from gradus.flows.recipe.overlays import overlay_files
from gradus.tasks.inspect.comparing.trainings import Sigmoid, fit_sigmoid
from tests.conftest import Server
from tests.e2e.conftest import RECIPE, Program
from tests.e2e.methods.behaviour import BEHAVIOUR
from tests.e2e.methods.inputs import write_inputs
from tests.e2e.methods.kinds import write_kinds
from tests.e2e.methods.objectives import Objective, Whole, learns
from tests.e2e.methods.step import LEARNING
from tests.e2e.methods.tasks import OnTask
from tests.sandboxes import MISSING

USUAL = (
    "evol_rl",
    "hpt",
    "length_targets",
    "mt_r1_zero",
    "on_policy_distillation",
    "pref_grpo",
    "riskpo",
    "rl_struct",
    "saturn",
    "sdpo",
    "seele",
    "spo",
    "sspo",
    "vade",
    "verif",
    "vl_rethinker",
)
CHOSEN = tuple(sorted(overlay_files())) if os.environ.get("GRADUS_METHODS") == "all" else USUAL
SMALL = ("rounds=2", "evaluate.every=2", "curate.draw=8", "curate.sample.max_tokens=40")
SMALL_TASK = (
    "rounds=2",
    "evaluate.every=2",
    "curate.draw=12",
    "profile.n=1",
    "evaluate.sample.n=1",
    "evaluate.report.ks=[1]",
)
SERVED = 'roles.judge.rollout={{engine="openai", server={{url="{url}", tokens=false}}}}'
PARTS = 'score.rewards=["numeric", {{name="format", pattern="7", weight=0.0}}]'
SUMMED = PARTS.replace("0.0", "1.0")
CRITIQUES = 'score.critique.rewards=[{{name="faults", pattern="[0-9]"}}]'
MORE = {
    "armed": (PARTS,),
    "aspo": ('score.rewards=["numeric", "calls.py:calls"]',),
    "autorule": (
        'roles.rm.policy="scorer"',
        'waves=[{{name="rubric_guided", items=["7", "12", "1"], template="{{question}}{{answer}}{{item}}"}}]',
        'score.judge.rewards=[{{name="format", pattern="7"}}]',
    ),
    "brorl": ("curate.draw=2",),
    "capo": ('waves=[{{name="step_critiques", n=3, template="{{answer}}"}}]', CRITIQUES),
    "cat_rl": (
        "curate.sample.n=3",
        "curate.sample.max_tokens=30",
        'waves=[{{name="reconcile", template="{{answers}}\\n{{question}}"}}]',
    ),
    "cascade": (
        (
            'phase=[{{rounds=1, changes={{"curate.sample.max_tokens"="=0.5 * curate.sample.max_tokens"}}}}, '
            "{{rounds=1}}]"
        ),
    ),
    "dapo": ("curate.draw=4",),
    "decontaminated": ('evaluate.problems="leaked.jsonl"',),
    "dots": ('waves=[{{name="dots", groups=6}}, {{name="replay", alpha=0.0, groups=4}}]',),
    "drive": (
        (
            'phase=[{{rounds=1}}, {{profile=false, changes={{"curate.rank"={{name="column", column="pass_rate", '
            'lowest=true}}, "curate.top"=4, "curate.draw"=4, "curate.sample.n"="=4 * curate.sample.n"}}}}]'
        ),
    ),
    "expo": (
        (
            'waves=[{{name="explain", n=4, '
            'template="State the final answer to the following arithmetic problem: {{hint}} + 0 ="}}]'
        ),
    ),
    "dapo_overlong": ('update.shapes=[{{name="overlong", limit=30, margin=20}}]',),
    "fast_math_r1": (
        SUMMED,
        (
            'phase=[{{rounds=1, changes={{"update.terms"=[{{loss="sft", rows={{correct=true}}}}]}}}}, '
            '{{changes={{"update.shapes"=["shorter"]}}}}]'
        ),
    ),
    "format_length": ('update.shapes=[{{name="format_length", pattern="7", limit=40}}]',),
    "gdpo": ('score.rewards=["numeric", {{name="format", pattern="7"}}]',),
    "gkd": ("teacher=teacher", "update.teacher_top_k=4"),
    "grpo_passk": ("curate.draw=16", "curate.sample.n=4"),
    "guide_grpo": (
        "curate.draw=16",
        "hint.fractions=[0.25, 0.9, 0.95]",
        'waves=[{{name="guide", level=2, template="{{question}}\\n{{hint}}"}}]',
    ),
    "hbpo": (
        "curate.draw=16",
        'curate.filters=[{{name="where", condition="domain = \'chain_sum/2\'"}}]',
        "curate.sample.n=1",
        'waves=[{{name="budgets", tokens=[8, 10, 20], n=3, template="{{question}}\\n{{budget}}"}}]',
        'update.shapes=[{{name="hbpo", limit=23, scale=2.0, alpha=0.03}}]',
        'update.advantage={{name="hbpo", limit=23, scale=2.0}}',
    ),
    "infi_mmr": ("phase=[{{rounds=1}}, {{rounds=1}}]",),
    "interleaved": (
        'problems="sub_answers.jsonl"',
        (
            'update.shapes=[{{name="interleaved", answer="(?:=|####)\\\\s*(-?[0-9]+)", '
            'form="(?:[^\\n]*\\n){{0,4}}[^\\n]*"}}]'
        ),
    ),
    "kdrl": ("teacher=teacher",),
    "know_rl": (
        'problems="knowledge.jsonl"',
        'score.probe.rewards=["numeric"]',
    ),
    "l1_max": (
        'problems="targets.jsonl"',
        'update.shapes=[{{name="length_targets", form="factor", scale=0.02}}]',
    ),
    "length_targets": ('problems="targets.jsonl"', 'update.shapes=[{{name="length_targets", scale=0.01}}]'),
    "libra_rm": (
        'waves=[{{name="verify", role="judge", n=4, template="{{question}}"}}]',
        'score.judge.rewards=["numeric"]',
    ),
    "light_if": ("profile.n=4", "curate.sample.temperature=2.0"),
    "lmm_r1": ("phase=[{{rounds=1}}, {{rounds=1}}]",),
    "lora": ("update.lr=1e-4",),
    "med_cco": ("phase=[{{rounds=1}}, {{rounds=1}}]",),
    "mind": ('update.shapes=[{{name="few_turns", turn="="}}]',),
    "modomodo": (
        (
            'curate.sampler={{name="modomodo", domains=["chain_sum/2", "chain_sum/3"], '
            "pilots=[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], outcomes=[0.1, 0.9, 0.5]}}"
        ),
    ),
    "mopd": ("teacher=teacher", 'update.teachers.expert={{"problem.domain"=["chain_sum/2", "chain_sum/3"]}}'),
    "mpo": (
        'waves=[{{name="grade", template="{{answer}}"}}, {{name="rewrite", every=1, template="{{rubric}}"}}]',
        'score.judge.rewards=[{{name="format", pattern="7"}}]',
    ),
    "multi_objective": (SUMMED.replace("1.0", "0.2"),),
    "omni_thinker": (
        'problems="kinds.jsonl"',
        'evaluate.problems="closed.jsonl"',
        'waves=[{{name="beside_reference", open_only=true, template="{{question}}{{answer}}{{reference}}"}}]',
        'score.judge.rewards=[{{name="format", pattern="7"}}]',
        (
            'phase=[{{rounds=1, changes={{"curate.filters"=[{{name="where", condition="answer is not null"}}]}}}}, '
            '{{changes={{"curate.filters"=[{{name="where", condition="answer is null"}}]}}}}]'
        ),
    ),
    "on_policy_distillation": ("teacher=teacher",),
    "p_grpo": (PARTS,),
    "paco": (SUMMED,),
    "pref_grpo": ('waves=[{{name="pairs", template="{{question}}|{{first}}|{{second}}"}}]', SERVED),
    "prorl": ("curate.draw=4",),
    "regft": (
        "curate.draw=16",
        (
            'phase=[{{rounds=2, waves=[{{name="guide", template="{{question}}\\n{{hint}}"}}], '
            'changes={{"update.terms"=[{{loss="sft", rows={{origin="guided", correct=true}}}}]}}}}]'
        ),
    ),
    "rlbff": (
        (
            'measures=[{{name="entailed", role="judge", principles=["12", "3"], yes="7", no="85", '
            'template="{{question}}{{answer}}{{principle}}="}}]'
        ),
    ),
    "rgr_grpo": (
        'waves=[{{name="rubric_guided", times=3, items=["7"], template="{{answer}}", guide="{{question}}"}}]',
        'score.judge.rewards=[{{name="format", pattern="7"}}]',
    ),
    "sage": (
        (
            'waves=[{{name="write_hints", levels=[1, 2], template="{{solution}}"}}, '
            '{{name="own_hints", times=2, template="{{question}}\\n{{hint}}"}}]'
        ),
    ),
    "self": ("curate.draw=32",),
    "skywork_r1v2": (
        'waves=["replay", {{name="verify", role="judge", template="{{question}}"}}]',
        'score.judge.rewards=["numeric"]',
    ),
    "spo": ("curate.sample.n=1",),
    "spo_chain": ('score.value.rewards=["numeric"]',),
    "star_ckd": ("teacher=teacher", "update.teacher_top_k=4"),
    "stepwiser": (
        'waves=[{{name="chunk_values", every=1, n=2}}, {{name="judge_chunks", n=4, template="{{question}}"}}]',
        'score.value.rewards=["numeric"]',
        'score.judge.rewards=[{{name="format", pattern="7"}}]',
    ),
    "tango": ('waves=[{{name="verify", template="{{question}}"}}]', 'score.judge.rewards=["numeric"]'),
    "think_rm": (
        "curate.draw=12",
        'waves=[{{name="pairs", n=3, template="{{question}}{{first}}{{second}}"}}]',
        'score.judge.rewards=[{{name="format", pattern="[12]"}}]',
    ),
    "trust_grpo": (PARTS,),
    "vcrl": ('curate.sampler="uniform"',),
    "veripo": (
        (
            'phase=[{{rounds=1}}, {{changes={{"update.advantage"={{name="dpo", beta=0.1}}, "update.loss"="reinforce", '
            '"update.aggregation"="sequence_mean"}}}}]'
        ),
    ),
    "zero_variance": ("profile.n=4",),
}
"""What a method needs on this recipe: a teacher, a judge, a group whose outcomes can differ."""
OFF_POLICY = ("overlap=1", "update.lr=2e-5")
"""A second round that an older policy sampled, for methods that weigh rows by the ratio to their sampler."""
TRAINED = {"libra_rm": ["judge"], "stepwiser": ["judge"], "tango": ["verifier"], "think_rm": ["judge"]}
"""Roles that learn."""
OF_SAMPLERS = ("bypass_", "decoupled_", "geometric_tis", "icepop", "sequence_mis", "tis")


def settings(name: str, url: str) -> list[str]:
    """What is set for a method's run: what its check needs, then what the method needs on this recipe."""
    check, sets = BEHAVIOUR[name], [*SMALL]
    if isinstance(check, OnTask):
        return [*SMALL_TASK, *(text.format(url=url) for text in check.sets)]
    if learns(check):
        sets += LEARNING
    if isinstance(check, Objective | Whole):
        sets.append("curate.sample.n=8")
    if name.startswith(OF_SAMPLERS):
        sets += OFF_POLICY
    return [*sets, *(text.format(url=url) for text in MORE.get(name, ()))]


@pytest.fixture(scope="module")
def methods(new_program: Callable[..., Program]) -> Program:
    program = new_program(warm=True)
    write_inputs(program.home)
    write_kinds(program.home)
    return program


@pytest.mark.parametrize("name", CHOSEN)
def test_a_method_trains_two_rounds_and_does_what_defines_it(methods: Program, judge: Server, name: str) -> None:
    if name == "lora" and find_spec("peft") is None:
        pytest.skip("peft is not installed")
    sets, check = settings(name, judge.url), BEHAVIOUR[name]
    if MISSING and isinstance(check, OnTask) and check.task == "programs":
        pytest.skip(f"this machine has no sandbox: {MISSING}")
    recipe = ("tasks", "--task", check.task) if isinstance(check, OnTask) and check.task else (str(RECIPE),)
    told: dict[str, Any] = methods.json(
        "train", *recipe, "--method", name, *(word for text in sets for word in ("--set", text)), "--run", name
    )
    assert (told["rounds"], told["skipped_updates"] <= 1) == (2, True)
    assert [*told.get("roles", {})] == TRAINED.get(name, [])
    check(methods, name)


def test_scale_rls_curve_is_over_the_tokens_of_the_rollouts(methods: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    small = (*SMALL[2:], "rounds=4", "evaluate.every=1", "seed=11")  # no rollout of another method is reused
    words = (word for text in small for word in ("--set", text))
    methods.json("train", str(RECIPE), "--method", "scale_rl", *words, "--run", "curve")
    started = [each for each in methods.events("curve") if each["event"] == "stage_started"]
    spent = dict.fromkeys(range(5), 0)
    for each in started:
        if each["stage"] == "rollout" and each["round"] > 0 and not each["purpose"].startswith("eval"):
            tokens = sum(len(row["completion_tokens"]) for row in methods.rows(each["output"]))
            spent = {at: before + tokens * (at >= each["round"]) for at, before in spent.items()}
    seen: list[list[float]] = []

    def fitted(compute: Any, rate: Any) -> Sigmoid:
        seen.extend(values.tolist() for values in (compute, rate))
        return fit_sigmoid(compute, rate)

    monkeypatch.setenv("GRADUS_HOME", str(methods.home))
    monkeypatch.setattr("gradus.tasks.inspect.comparing.trainings.fit_sigmoid", fitted)
    curve = gradus.run("curve").scaling()
    assert seen[0] == list(spent.values())
    assert seen[0][-1] > seen[0][1] > seen[0][0] == 0
    assert curve.start == seen[1][0]
    shown = methods.json("show", "curve", "--curve")
    assert [[each[name] for each in shown["points"]] for name in ("tokens", "pass_at_1")] == seen[0:2]
    gain, exponent = shown["asymptote"] - shown["start"], shown["exponent"]
    by_hand = [shown["start"] + gain / (1 + (shown["midpoint_tokens"] / each) ** exponent) for each in seen[0][1:]]
    assert [each["fitted"] for each in shown["points"][1:]] == pytest.approx(by_hand)
    code, out, _ = methods.run("show", "curve", "--curve")
    assert (code, "pass@1 on heldout" in out, "asymptote" in out) == (0, True, True)
    for words_, said in (
        (("--curve", "--suite", "hard"), "run curve has the suites heldout; name one: --suite NAME"),
        (("--suite", "heldout"), "--suite is that of --curve; give both, or neither"),
    ):
        code, out, err = methods.run("show", "curve", *words_)
        assert (code, out, said in err) == (2, "", True)
