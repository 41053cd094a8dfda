"""The formats of other systems: which of their fields is which of ours, and what a file of them does not hold.

verl: a JSONL file a step, named by it (`trainer.rollout_data_dir`), with a key for each value that the reward function
    returns beside the score; `acc` is the customary verdict (verl/trainer/ppo/v1/trainer_base.py).
trl: a Parquet file a step (`log_completions`, GRPOTrainer.log). Which numbers are rewards is not said: all are taken
    but those known; the reward is their sum, as with TRL's default weights.
trinity: Trinity-RFT's experiences, one JSONL file (Experience.to_dict); experiences of one task and batch are a group.
openai: conversations as OpenAI's fine-tuning takes them, `{"messages": [...]}` and nothing else.
open-instruct: shards of RolloutRecord (`--save_traces`, open_instruct/rl_utils.py); they hold token ids, no texts.
table: a user's own table, a row a rollout, under our names: `problem_id` or `question`, `reward` or `correct`, and
    what else there is. Nothing in it is skipped: the first row that cannot be used is an error.
art: ART's trajectories, a Parquet file a step (src/art/utils/trajectory_logging.py, versions 1 and 2); `messages` are
    the turns, in version 2 null where `trajectory_json` alone holds them.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradus.data.exchange.row import OURS, READERS, Exchanged, number_of, ours_of, turns_of, whole_of
from gradus.data.records import Row
from gradus.data.sources.formats import UnusableRowError


@dataclass(frozen=True)
class Format:
    """The format of one system's rollouts; `write` is None if it is only read, `fields` is empty if only written.

    `lost` are sentences on what a file of it does not hold.
    """

    suffix: Literal[".jsonl", ".parquet"]
    lost: tuple[str, ...]
    fields: Mapping[str, str]
    """Our field by theirs; `a.b` is the key b of the object a."""
    components: str | None = ""
    """The field of an object whose numbers are parts of the reward; empty for all other numbers of the row."""
    ours: str | None = ""
    """The field of an object that holds our own fields; empty for the row itself, None for none."""
    known: tuple[str, ...] = ()
    """Numbers that are not part of the reward."""
    more: Callable[[Row], Mapping[str, Any]] | None = None
    """Returns further fields of ours, read from those in `also`."""
    also: tuple[str, ...] = ()
    write: Callable[[Exchanged], dict[str, object]] | None = None
    file: str = ""
    """Name of the file for the rollouts of a round."""
    step_in_name: bool = False
    """The step is in the name of a file alone, and groups are numbered within one."""
    strict: bool = False
    """True if a row that cannot be used is an error; otherwise it is left out and counted."""
    texts: bool = True
    """True if rows hold texts; otherwise a tokenizer makes them."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are looked for; others may be rewards."""
        named = [path.partition(".")[0] for path in self.fields]
        own = OURS if self.ours == "" else (self.ours,)
        return tuple(dict.fromkeys(filter(None, (*named, *self.also, self.components, *own))))


def read(found: Format, row: Row) -> Exchanged:
    """Return a row of a file as a rollout; raise UnusableRowError if it is none."""
    more = found.more(row) if found.more else {}
    fields = {ours: READERS[ours](_at(row, path), path) for path, ours in found.fields.items() if ours not in more}
    if found.components == "":
        parts = {key: value for key, value in row.items() if key not in (*found.columns, *found.known)}
    else:
        parts = _object(row.get(found.components)) if found.components else {}
    numbers = {str(key): number for key, value in parts.items() if (number := number_of(value)) is not None}
    own = ours_of(row if found.ours == "" else _object(row.get(found.ours))) if found.ours is not None else {}
    own = {name: value for name, value in own.items() if name not in more} if found.strict else own
    whole: dict[str, Any] = {"prompt": "", "completion": "", **fields, **more, **own, "components": numbers}
    return Exchanged(**whole)


def _at(row: Row, path: str) -> object:
    name, _, key = path.partition(".")
    return _object(row.get(name)).get(key) if key else row.get(name)


def _object(value: object) -> Mapping[str, object]:
    """Return an object, or one that a field holds as JSON; empty for anything else."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _verl(row: Exchanged) -> dict[str, object]:
    """Return a line of the dump; a rollout without a reward has no score, as verl has none for it."""
    verdict = {} if row.correct is None else {"acc": float(row.correct)}
    fields = {"input": row.prompt, "output": row.completion, "gts": row.answer, "score": row.reward, "step": row.round}
    return {**fields, **verdict, **row.components, **row.ours()}


def _trl(row: Exchanged) -> dict[str, object]:
    """Return a row of the table; the column `reward` is the whole reward."""
    texts = {"step": row.round, "prompt": row.prompt, "completion": row.completion}
    return {**texts, "reward": math.nan if row.reward is None else row.reward, "advantage": math.nan, **row.ours()}


def _sum_of_rewards(row: Row) -> Mapping[str, Any]:
    known = (*FORMATS["trl"].columns, *FORMATS["trl"].known)
    numbers = [number_of(value) for key, value in row.items() if key not in known]
    rewards = [number for number in numbers if number is not None]
    without = READERS["reward"](row.get("reward"), "reward") is None
    return {"reward": sum(rewards)} if without and rewards else {}


_CUT = "response_truncated"


def _experience(row: Row) -> Mapping[str, Any]:
    """Texts, group and end of an experience; raise UnusableRowError for a preference pair, or without texts."""
    if row.get("type") == "dpo":
        raise UnusableRowError("a preference pair, not a rollout")
    eid, prompt, completion = _object(row.get("eid")), row.get("prompt_text"), row.get("response_text")
    if not (isinstance(prompt, str) and isinstance(completion, str)):
        prompt, completion = turns_of(row.get("messages"))
    return {
        "prompt": prompt,
        "completion": completion,
        "group_id": f"{eid['batch']}/{eid['task']}" if "batch" in eid and "task" in eid else "",
        "finish_reason": "length" if row.get("truncate_status") == _CUT else None,
    }


def _trinity(row: Exchanged) -> dict[str, object]:
    """Return an experience of one turn; lengths in tokens are those of the rollout, 0 if it has none."""
    cut = {"truncate_status": _CUT} if row.finish_reason == "length" else {}
    scored = {} if row.reward is None else {"reward": row.reward}
    return {
        "eid": {"batch": row.round, "task": row.group_id, "run": row.sample or 0, "step": 0, "suffix": row.rollout_id},
        "type": "single_turn",
        "prompt_length": len(row.prompt_tokens or ()),
        "response_length": len(row.completion_tokens or ()),
        "info": row.ours(),
        "metrics": dict(row.components),
        "prompt_text": row.prompt,
        "response_text": row.completion,
        **scored,
        **cut,
    }


def _conversation(row: Exchanged) -> dict[str, object]:
    turns = [{"role": "user", "content": row.prompt}, {"role": "assistant", "content": row.completion}]
    return {"messages": turns}


def _record(row: Row) -> Mapping[str, Any]:
    """Group and log-probs of a record of open-instruct's, as many as it has tokens."""
    logprobs, completion = row.get("logprobs"), READERS["completion_tokens"](row.get("response_tokens"), "")
    numbers = [number_of(value) for value in logprobs] if isinstance(logprobs, list) else []
    known = [value for value in numbers if value is not None]
    return {
        "group_id": f"{whole_of(row.get('step'), 'step')}/{whole_of(row.get('prompt_idx'), 'prompt_idx')}",
        "logprobs": known if len(known) == len(completion) else None,
    }


def _trajectory(row: Row) -> Mapping[str, Any]:
    """Texts and group of a trajectory: messages, and choices of an API, whose message is the turn."""
    messages = row.get("messages")
    if messages is None and row.get("trajectory_json") is None:
        raise UnusableRowError("a group without trajectories")
    if messages is None:
        turns = _object(row.get("trajectory_json")).get("messages_and_choices")
        if not isinstance(turns, list):
            raise UnusableRowError("no conversation")
        choices = (turn.get("message") if isinstance(turn, Mapping) else None for turn in turns)
        messages = [own if isinstance(own, Mapping) else turn for turn, own in zip(turns, choices, strict=True)]
    prompt, completion = turns_of(messages)
    group = str(whole_of(row.get("group_index"), "group_index"))
    return {"prompt": prompt, "completion": completion, "group_id": group}


def _own(row: Row) -> Mapping[str, Any]:
    """Return the fields of a user's own row; raise UnusableRowError without a problem, or without a finite reward."""
    number, reward, correct = row.get("problem_id"), row.get("reward"), row.get("correct")
    if isinstance(number, bool) or not isinstance(number, str | int | None):
        raise UnusableRowError("problem_id is neither a text nor a whole number")
    named = "" if number is None else str(number)
    if not named and row.get("question") is None:
        raise UnusableRowError("no problem_id and no question")
    if reward is None and correct is None:
        raise UnusableRowError("no reward and no correct")
    value = float(reward) if isinstance(reward, bool) else number_of(reward)
    if value is None and reward is not None:
        raise UnusableRowError(f"reward is {reward if isinstance(reward, float) else 'not a number'}")
    if correct is not None and (not isinstance(correct, bool | int | float) or correct not in (0, 1)):
        raise UnusableRowError("correct is neither true nor false")
    verdict = None if correct is None else bool(correct)
    return {
        "problem_id": named,
        "prompt": "" if row.get("question") is None else READERS["prompt"](row["question"], "question"),
        "completion": None if row.get("completion") is None else READERS["completion"](row["completion"], "completion"),
        "reward": float(bool(verdict)) if value is None else value,
        "correct": verdict,
        "sample": None if row.get("sample") is None else whole_of(row["sample"], "sample"),
        "completion_tokens": _tokens_or_none(row.get("completion_tokens")),
    }


def _tokens_or_none(value: object) -> list[int] | None:
    return None if value is None else READERS["completion_tokens"](value, "completion_tokens")


NO_TOKENS = "no tokens and no log-probs: the rows can be scored, curated and browsed, not updated from"
FORMATS: Mapping[str, Format] = {
    "verl": Format(
        ".jsonl",
        (NO_TOKENS,),
        {
            "input": "prompt", "output": "completion", "gts": "answer", "score": "reward", "step": "round",
            "acc": "correct",
        },
        known=("uid", "request_id"),
        write=_verl,
        file="{}.jsonl",
    ),
    "trl": Format(
        ".parquet",
        (NO_TOKENS, "no gold answers", "no advantages"),
        {"step": "round", "prompt": "prompt", "completion": "completion", "reward": "reward"},
        known=("advantage",),
        more=_sum_of_rewards,
        write=_trl,
        file="completions_{:05d}.parquet",
    ),
    "trinity": Format(
        ".jsonl",
        (NO_TOKENS, "no gold answers"),
        {"eid.batch": "round", "prompt_text": "prompt", "response_text": "completion", "reward": "reward"},
        components="metrics",
        ours="info",
        also=("type", "messages", "truncate_status"),
        more=_experience,
        write=_trinity,
        file="experiences.jsonl",
    ),
    "openai": Format(".jsonl", (NO_TOKENS, "no rewards, no ids"), {}, write=_conversation, file="chat.jsonl"),
    "open-instruct": Format(
        ".jsonl",
        ("the policy is not named, so no update takes the rows",),
        {
            "prompt_tokens": "prompt_tokens", "response_tokens": "completion_tokens", "step": "round",
            "ground_truth": "answer", "reward": "reward", "finish_reason": "finish_reason",
        },
        components=None,
        ours=None,
        also=("logprobs", "prompt_idx"),
        more=_record,
        texts=False,
    ),
    "table": Format(
        ".jsonl",
        ("the policy is not named, so no update takes the rows",),
        {
            "problem_id": "problem_id", "question": "prompt", "completion": "completion", "answer": "answer",
            "reward": "reward", "correct": "correct", "round": "round", "sample": "sample",
            "completion_tokens": "completion_tokens", "finish_reason": "finish_reason",
        },
        components=None,
        more=_own,
        strict=True,
    ),
    "art": Format(
        ".parquet",
        (NO_TOKENS, "no gold answers"),
        {"reward": "reward"},
        components="metrics",
        ours=None,
        also=("messages", "trajectory_json", "group_index"),
        more=_trajectory,
        step_in_name=True,
    ),
}  # fmt: skip
"""By the name that the command line takes."""
