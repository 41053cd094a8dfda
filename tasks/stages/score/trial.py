"""Try a user's rewards before anything is sampled: only a call shows their results.

try_rewards(store, config.rewards, problems, logs)     # BadInputError: the function returned str, not a number
"""

from collections.abc import Iterable
from pathlib import Path

from gradus.data.answers import further_golds
from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.data.records import Problem
from gradus.models.judging.pool import JudgeStartError, tried
from gradus.models.rewards import resolve, versions
from gradus.models.rewards.user import UNABLE
from gradus.models.sandbox import NEEDED, Sandbox, SandboxUnavailableError
from gradus.tasks.config.score import RewardConfig
from gradus.tasks.host.processes import log_name
from gradus.tasks.identity.pins import pinned_component
from gradus.tasks.stages.score.rewards import spec_of
from gradus.tasks.stages.score.score_report import plain

_LIMIT_S = 5.0
"""A reward that takes longer is not wrong: it is not tried to the end."""
_ALIKE = {"sample": 0, "round": 0, "finish_reason": "stop", "hint_level": 0, "policy": "", "engine": "trial"}
_DRAWN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 0}


def try_rewards(store: Store, rewards: Iterable[RewardConfig], problems: Ref, logs: Path) -> None:
    """Call each user's reward with two rows, whose completions are a worked solution and a gold answer.

    BadInputError if it judges neither, unless it returns None or is slow; for a reward that needs gold answers if no
    problem has one; for one that runs programs, or is isolated, if this machine has no sandbox; and for one whose
    library is not installed.
    """
    rewards = list(rewards)
    _refuse_without_library(rewards)
    _refuse_without_gold(store, rewards, problems)
    _refuse_without_sandbox(rewards)
    found = [reward for reward in rewards if not reward.is_ours]
    rows = trial_rows(store.read(problems).slice(0, 2).to_pylist()) if found else []
    for reward in map(pinned_component, found):
        spec = spec_of(reward)
        log = logs / log_name(spec.name)
        try:
            verdicts = tried(spec, rows, limit_s=_LIMIT_S, log=log)
        except JudgeStartError as error:
            raise BadInputError(str(error), hint="correct the file and run the same command again") from error
        if len(verdicts) == len(rows) and all(v.value is None and v.error != UNABLE for v in verdicts):
            printed = f" (traceback in {log})" if log.exists() and log.stat().st_size else ""
            raise BadInputError(
                f"the reward {reward.label} judged none of the {len(rows)} rows that it was tried on: "
                f"{plain(verdicts[0].error)}{printed}",
                hint='return for each row a number, {"value": 0.7, "correct": True}, or None if it cannot be judged',
            )


def _refuse_without_gold(store: Store, rewards: Iterable[RewardConfig], problems: Ref) -> None:
    needs = [reward.label for reward in rewards if reward.is_ours and resolve(reward.name, reward.settings).needs_gold]
    rows = store.read(problems, ["answer", "extra"]) if needs else None
    if (
        rows is not None
        and rows["answer"].null_count == len(rows)
        and not any(map(further_golds, rows["extra"].to_pylist()))
    ):
        raise BadInputError(
            f"the reward {needs[0]} needs gold answers, and no problem has one",
            hint="take rewards that need none, or name the column of the answers: ingest.columns",
        )


def _refuse_without_library(rewards: Iterable[RewardConfig]) -> None:
    for reward in (each for each in rewards if each.is_ours):
        if lacking := next((name for name, version in versions(reward.component).items() if not version), ""):
            what = f"the reward {reward.label} needs {lacking}, which is not installed"
            raise BadInputError(what, hint=f"pip install {lacking}")


def _refuse_without_sandbox(rewards: Iterable[RewardConfig]) -> None:
    for reward in rewards:
        if reward.needs_sandbox:
            try:
                Sandbox(python=reward.settings["python"] if reward.declared.sandbox else "").close()
            except SandboxUnavailableError as error:
                raise BadInputError(f"the reward {reward.label} needs a sandbox: {error}", hint=NEEDED) from error


def trial_rows(problems: list[Problem]) -> list[dict[str, object]]:
    """Return a row for each problem as a reward sees it, with every column that is never null."""
    rows: list[dict[str, object]] = []
    for index, problem in enumerate(problems):
        texts = (problem["solution"], problem["answer"]) if index == 0 else (problem["answer"],)
        completion = next((text for text in texts if text), "")
        group = f"{problem['problem_id']}@trial"
        ids = {"rollout_id": f"trial:{index}", "group_id": group, "completion": completion}
        known = {key: value for key, value in problem.items() if value is not None}
        rows.append({"answer": None, **_ALIKE, **_DRAWN, **ids, **known})
    return rows
