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

>>> FORMATS["verl"].read({"input": "1 + 1 =", "output": "2", "gts": "2", "score": 1.0, "step": 3}).reward
1.0
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradus.data.exchange.row import NEEDED, OURS, READERS, Exchanged, number_of, ours_of, turns_of, whole_of
from gradus.data.records import Row
from gradus.data.sources.formats import UnusableRowError


@dataclass(frozen=True)
class Format:
    """The format of one system's rollouts: a table of fields, read one way and written the other."""

    suffix: Literal[".jsonl", ".parquet"]
    lost: tuple[str, ...]
    """Sentences on what a file of it does not hold."""
    fields: Mapping[str, str]
    """Our field by theirs; `a.b` is the key b of the object a."""
    components: str | None = ""
    """The field of an object whose numbers are parts of the reward; empty for all other numbers of the row."""
    ours: str | None = ""
    """The field of an object that holds our own fields; empty for the row itself, None for none."""
    known: tuple[str, ...] = ()
    """Numbers that are not part of the reward."""
    summed: bool = False
    """True if the parts of the reward add up to that of a row without one."""
    more: Callable[[Row], Mapping[str, Any]] | None = None
    """Returns further fields of ours, read from those in `also`."""
    also: tuple[str, ...] = ()
    file: str = ""
    """Name of the file for the rollouts of a round; empty if the format is only read."""
    further: Callable[[Exchanged], Mapping[str, object]] | None = None
    """Returns further fields of theirs, to be written."""
    omitted: tuple[str, ...] = ()
    """Fields of ours that are left out of a row that has none."""
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

    def read(self, row: Row) -> Exchanged:
        """Return a row of a file as a rollout; raise UnusableRowError if it is none."""
        more = self.more(row) if self.more else {}
        found: dict[str, Any] = {"prompt": "", "completion": None if self.strict else ""}
        for path, ours in self.fields.items():
            name, _, key = path.partition(".")
            value = _object(row.get(name)).get(key) if key else row.get(name)
            if value is None and ours in NEEDED and ours not in more and not self.strict:
                raise UnusableRowError(f"no {path}")
            if value is not None and ours not in more:
                found[ours] = READERS[ours](value, path)
        if self.components == "":
            parts = {key: value for key, value in row.items() if key not in (*self.columns, *self.known)}
        else:
            parts = _object(row.get(self.components)) if self.components else {}
        numbers = {str(key): number for key, value in parts.items() if (number := number_of(value)) is not None}
        if self.summed and numbers and found.get("reward") is None:
            found["reward"] = sum(numbers.values())
        own = {} if self.ours is None else ours_of(_object(row.get(self.ours)) if self.ours else row)
        found |= {**more, **own, "components": numbers}
        return Exchanged(**found)

    def write(self, row: Exchanged) -> dict[str, object]:
        """Return a rollout as a row of a file; the columns of a Parquet file are the same whatever its rows hold."""
        found: dict[str, Any] = {}
        for path, ours in self.fields.items():
            value = getattr(row, ours)
            if value is not None or ours not in self.omitted:
                name, _, key = path.partition(".")
                value = float(value) if isinstance(value, bool) else value
                found |= {name: {**found.get(name, {}), key: value}} if key else {name: value}
        found |= self.further(row) if self.further else {}
        parts = row.components if self.suffix == ".jsonl" else {}
        for name, held in ((self.components, parts), (self.ours, {name: getattr(row, name) for name in OURS})):
            if name is not None:
                found |= {name: dict(held)} if name else held
        return found


def _object(value: object) -> Mapping[str, object]:
    """Return an object, or one that a field holds as JSON; empty for anything else."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}


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


def _as_experience(row: Exchanged) -> Mapping[str, object]:
    """An experience has one turn; its lengths in tokens are those of the rollout, 0 if it has none."""
    return {
        "eid": {"batch": row.round, "task": row.group_id, "run": row.sample or 0, "step": 0, "suffix": row.rollout_id},
        "type": "single_turn",
        "prompt_length": len(row.prompt_tokens or ()),
        "response_length": len(row.completion_tokens or ()),
        **({"truncate_status": _CUT} if row.finish_reason == "length" else {}),
    }


def _record(row: Row) -> Mapping[str, Any]:
    """Group and log-probs of a record of open-instruct's, as many as it has tokens."""
    logprobs, completion = row.get("logprobs"), row.get("response_tokens")
    numbers = [number_of(value) for value in logprobs] if isinstance(logprobs, list) else []
    known = [value for value in numbers if value is not None]
    return {
        "group_id": f"{whole_of(row.get('step'), 'step')}/{whole_of(row.get('prompt_idx'), 'prompt_idx')}",
        "logprobs": known if isinstance(completion, list) and len(known) == len(completion) else None,
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
    """Problem, reward and verdict of a user's own row; raise UnusableRowError without a problem or a finite reward."""
    number, reward, correct = row.get("problem_id"), row.get("reward"), row.get("correct")
    if isinstance(number, bool) or not isinstance(number, str | int | None):
        raise UnusableRowError("problem_id is neither a text nor a whole number")
    if number in (None, "") and row.get("question") is None:
        raise UnusableRowError("no problem_id and no question")
    if reward is None and correct is None:
        raise UnusableRowError("no reward and no correct")
    if correct is not None and (not isinstance(correct, bool | int | float) or correct not in (0, 1)):
        raise UnusableRowError("correct is neither true nor false")
    given = correct if reward is None else reward
    value = float(given) if isinstance(given, bool) else number_of(given)
    if value is None:
        raise UnusableRowError(f"reward is {reward if isinstance(reward, float) else 'not a number'}")
    verdict = None if correct is None else bool(correct)
    return {"problem_id": "" if number is None else str(number), "reward": value, "correct": verdict}


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
        omitted=("correct",),
        file="{}.jsonl",
    ),
    "trl": Format(
        ".parquet",
        (NO_TOKENS, "no gold answers", "no advantages"),
        {"step": "round", "prompt": "prompt", "completion": "completion", "reward": "reward"},
        known=("advantage",),
        summed=True,
        further=lambda row: {"reward": math.nan if row.reward is None else row.reward, "advantage": math.nan},
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
        omitted=("reward",),
        further=_as_experience,
        file="experiences.jsonl",
    ),
    "openai": Format(
        ".jsonl",
        (NO_TOKENS, "no rewards, no ids"),
        {},
        components=None,
        ours=None,
        file="chat.jsonl",
        further=lambda row: {
            "messages": [{"role": "user", "content": row.prompt}, {"role": "assistant", "content": row.completion}]
        },
    ),
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
            "completion_tokens": "completion_tokens", "finish_reason": "finish_reason", "hint_level": "hint_level",
            "hint_text": "hint_text",
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
