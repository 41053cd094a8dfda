"""Finished completions as rows of the table rollouts, built column by column: a row costs microseconds, not dicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from gradus.data.lake.schema import ROLLOUTS
from gradus.data.unicode import num_halves, whole
from gradus.models.engines.base import Finished, Request
from gradus.models.engines.stops import cut_behind
from gradus.models.policy import completion_texts
from gradus.tasks.config.redaction import hide
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.stages.rollout.groups import Group

V = TypeVar("V")


@dataclass(frozen=True)
class Asked:
    """The requests of one shard in the order of the plan, each with its group and its place in that."""

    groups: Sequence[Group]
    samples: Sequence[int]
    requests: Sequence[Request]

    @classmethod
    def of(cls, groups: Sequence[Group], config: RolloutConfig, digest: str) -> "Asked":
        """All requests of these groups, for the rollouts artifact `digest`."""
        return cls(
            [group for group in groups for _ in range(group.n)],
            [sample for group in groups for sample in range(group.n)],
            [request for group in groups for request in group.requests(config, digest)],
        )

    @property
    def ids(self) -> list[str]:
        """The ids of the rollouts."""
        return [request.rollout_id for request in self.requests]


@dataclass(frozen=True)
class SamplerFacts:
    """Facts of the sampler that every row repeats."""

    engine: str
    policy: str
    tokenizer: PreTrainedTokenizerBase | None
    """None if the engine returns text alone."""

    def rows(self, asked: Asked, finished: Mapping[int, Finished], round_: int) -> pa.Table:
        """The finished requests as a table, in the order of their numbers.

        What a failed request lacks, or an engine of text alone, is null.
        """
        chosen = sorted(finished)
        done = [finished[i] for i in chosen]
        remarks = [d.error or replaced(d.text or "") for d in done]
        groups, requests = [asked.groups[i] for i in chosen], [asked.requests[i] for i in chosen]
        num_rows = len(chosen)
        columns: dict[str, Sequence[object]] = {
            "rollout_id": [request.rollout_id for request in requests],
            "problem_id": [group.problem_id for group in groups],
            "group_id": [group.group_id for group in groups],
            "sample": [asked.samples[i] for i in chosen],
            "round": [round_] * num_rows,
            "completion": self._texts(requests, done),
            "prompt_tokens": self._known(done, [request.prompt_tokens for request in requests]),
            "completion_tokens": self._known(done, [d.tokens for d in done]),
            "logprobs": self._known(done, [d.logprobs for d in done]),
            "finish_reason": [d.finish_reason for d in done],
            "error": [hide(whole(remark)) if remark else None for remark in remarks],
            "hint_level": [group.hint_level for group in groups],
            "hint_text": [group.hint_text for group in groups],
            "policy": [whole(self.policy)] * num_rows,
            "engine": [whole(self.engine)] * num_rows,
            "temperature": [request.temperature for request in requests],
            "top_p": [request.top_p for request in requests],
            "top_k": [request.top_k for request in requests],
            "seed": [request.seed for request in requests],
        }
        schema = ROLLOUTS.restricted(columns).arrow  # the policy sampled every token: no origin, no spans
        return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)

    def _known(self, done: Sequence[Finished], values: Sequence[V]) -> list[V | None]:
        """Token data, null where there is none."""
        if self.tokenizer is None:
            return [None] * len(done)
        return [None if d.finish_reason == "error" else v for d, v in zip(done, values, strict=True)]

    def _texts(self, requests: Sequence[Request], done: Sequence[Finished]) -> list[str | None]:
        """Return the sampled texts, without special tokens and without text behind a stop string."""
        if self.tokenizer is None:
            texts = [whole(d.text or "") for d in done]
        else:
            texts = completion_texts(self.tokenizer, [d.tokens for d in done])
            texts = [cut_behind(text, request.stop) for text, request in zip(texts, requests, strict=True)]
        return [None if d.finish_reason == "error" else text for d, text in zip(done, texts, strict=True)]


def replaced(text: str) -> str:
    """Return a remark on what is replaced in a completion that a server sent as text; empty if it is stored as sent."""
    count = num_halves(text)
    return f"{count} halves of characters (not valid Unicode) were replaced by U+FFFD" if count else ""
