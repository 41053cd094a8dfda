"""Stage `given`: worked solutions, or traces of somebody else, as rows that an update learns from.

The rows look like rollouts, of an origin that recipes name a loss for (update.origin_losses), and without the log-probs
of a sampler. They are scored like rollouts, since LUFFY (arXiv 2504.14945) compares them with the policy's own; so the
text is the one that was given, and a wrong one is judged wrong.
"""

from collections import Counter
from pathlib import Path

import pyarrow as pa

from gradus.data.errors import BadInputError
from gradus.data.lake.schema import ROLLOUTS, sample_key
from gradus.data.records import Problem
from gradus.data.sources.tabular import Refused
from gradus.data.sources.traces import Trace, read_traces
from gradus.models.policy import Policy, completion_texts
from gradus.models.training.warmstart import Example
from gradus.tasks.artifacts.loading import loaded_policy
from gradus.tasks.config.learning import GivenConfig
from gradus.tasks.config.prompts import PROMPT_COLUMNS
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.warmstart import fitting, worked_solutions

_COLUMNS = (
    "rollout_id",
    "problem_id",
    "completion",
    "prompt_tokens",
    "completion_tokens",
    "finish_reason",
    "origin",
)


def run(ctx: StageContext, config: GivenConfig) -> StageResult:
    """One row for each completion that fits the policy; BadInputError if there is none."""
    policy = loaded_policy(ctx.store, ctx.one("policy"), "auto", "cpu")
    refused = Refused()
    if config.rows:
        traces, examples = _fitting(ctx, policy, config, refused)
    else:
        found = worked_solutions(ctx, policy, config.prompt.style, config.template)
        traces, examples = [Trace(name, "", None) for name in found], list(found.values())
    ctx.out.write_table(_table(ctx.out.ref.digest, policy, config, traces, examples))
    lengths = [len(example.completion) for example in examples]
    num_problems = ctx.table("problems", ["problem_id"]).num_rows
    summary = {
        "rows": len(examples),
        "without_solution": num_problems - len({trace.problem_id for trace in traces}),
        "tokens": sum(lengths),
        **({"refused": dict(refused.reasons.most_common()), "examples": refused.examples} if refused.reasons else {}),
    }
    shown = zip(traces[:8], lengths[:8], strict=True)
    samples = [{"problem_id": trace.problem_id, "tokens": length} for trace, length in shown]
    return StageResult(summary=summary, samples=samples)


def _fitting(
    ctx: StageContext, policy: Policy, config: GivenConfig, refused: Refused
) -> tuple[list[Trace], list[Example]]:
    """The traces of a file whose prompt and text fit the policy, and both as tokens."""
    problems: dict[str, Problem] = {row["problem_id"]: row for row in ctx.table("problems", PROMPT_COLUMNS).to_pylist()}
    found: list[tuple[Trace, Example]] = []
    traces = list(read_traces(Path(config.rows), list(problems.values()), refused))
    given = [(problems[trace.problem_id], trace.text) for trace in traces]
    for trace, example in zip(traces, fitting(policy, given, config.prompt.style), strict=True):
        if example is None:
            refused.add("longer than the policy's context", f"{config.rows}, problem {trace.problem_id}")
        else:
            found.append((trace, example))
    if not found:
        raise BadInputError(f"no row of {config.rows} fits the policy's context", hint="give shorter traces")
    return [trace for trace, _ in found], [example for _, example in found]


def _table(digest: str, policy: Policy, config: GivenConfig, traces: list[Trace], examples: list[Example]) -> pa.Table:
    num_rows, seen = len(traces), Counter[str]()
    keys: list[str] = []
    for trace in traces:
        more = f"#{seen[trace.problem_id]}" if seen[trace.problem_id] else ""
        keys.append(sample_key(digest, f"{trace.problem_id}@{config.origin}{more}"))
        seen[trace.problem_id] += 1
    table = pa.table(
        {
            "rollout_id": keys,
            "problem_id": [trace.problem_id for trace in traces],
            "completion": completion_texts(policy.tokenizer, [example.completion for example in examples]),
            "prompt_tokens": pa.array([example.prompt for example in examples], pa.list_(pa.int32())),
            "completion_tokens": pa.array([example.completion for example in examples], pa.list_(pa.int32())),
            "finish_reason": ["stop"] * num_rows,
            "origin": [config.origin] * num_rows,
        },
        schema=ROLLOUTS.restricted(_COLUMNS).arrow,
    )
    return (
        table.append_column("source", pa.array([each.source for each in traces], pa.string())) if config.rows else table
    )
