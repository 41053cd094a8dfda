"""Stage `given`: worked solutions as rows that an update learns from beside the policy's own completions.

The rows look like rollouts, of an origin that recipes name a loss for (update.origin_losses), and without the log-probs
of a sampler. They are scored like rollouts, since LUFFY (arXiv 2504.14945) compares them with the policy's own.
"""

import pyarrow as pa

from gradus.data.lake.schema import ROLLOUTS, sample_key
from gradus.models.policy import Policy, completion_texts
from gradus.models.training.warmstart import Example
from gradus.tasks.artifacts.loading import loaded_policy
from gradus.tasks.config.given import GivenConfig
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.warmstart import worked_solutions

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
    """One row for each problem whose worked solution fits the policy; BadInputError if there is none."""
    policy = loaded_policy(ctx.store, ctx.one("policy"), "auto", "cpu")
    solutions = worked_solutions(ctx, policy, config.prompt.style)
    names = list(solutions)
    lengths = [len(example.completion) for example in solutions.values()]
    ctx.out.write_table(_table(ctx.out.ref.digest, policy, config, names, list(solutions.values())))
    num_problems = ctx.table("problems", ["problem_id"]).num_rows
    summary = {"rows": len(names), "without_solution": num_problems - len(names), "tokens": sum(lengths)}
    samples = [{"problem_id": name, "tokens": length} for name, length in zip(names[:8], lengths[:8], strict=True)]
    return StageResult(summary=summary, samples=samples)


def _table(digest: str, policy: Policy, config: GivenConfig, names: list[str], examples: list[Example]) -> pa.Table:
    num_rows = len(names)
    return pa.table(
        {
            "rollout_id": [sample_key(digest, f"{name}@{config.origin}") for name in names],
            "problem_id": names,
            "completion": completion_texts(policy.tokenizer, [example.completion for example in examples]),
            "prompt_tokens": pa.array([example.prompt for example in examples], pa.list_(pa.int32())),
            "completion_tokens": pa.array([example.completion for example in examples], pa.list_(pa.int32())),
            "finish_reason": ["stop"] * num_rows,
            "origin": [config.origin] * num_rows,
        },
        schema=ROLLOUTS.restricted(_COLUMNS).arrow,
    )
