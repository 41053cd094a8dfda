"""The only columns that a stage reads of an input, by role: a change of others does not change its result.

A stage takes its columns from here, and its identity goes by their values (gradus.tasks.runtime.calls). Of a role that
is not named every byte counts.
"""

ROLLOUT = {
    "plan": ("problem_id", "group_id", "n", "hint_level", "hint_text", "temperature", "max_tokens", "seed"),
    "problems": ("problem_id", "question", "messages"),
}
UPDATE = {"scores": ("rollout_id", "reward", "correct")}
